// What no parser of JSON or TOML should be handed. Both libraries build values that are copied,
// written and destroyed by recursion, so a text that nests deep enough ends the process; and JSON's
// takes a NUL for the end, whatever stands behind it. One pass, without memory of its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrum {

struct TextLimits {
  int depth = 32;                  // brackets inside brackets
  size_t token = size_t{4} << 20;  // bytes of one string, number or gap: JSON's keeps it whole
  size_t values = SIZE_MAX;        // of a text that is built as a tree: sixteen bytes each and more
  size_t parts = SIZE_MAX;  // objects, lists and texts among them, which take five times that
};

// Why the text is refused, to follow "it "; "" where nothing is wrong. A text that is not JSON
// passes: that is for the parser to say.
std::string json_problem(std::string_view text, const TextLimits& limits = {});

// The same for TOML, where the dots of a key nest as well.
std::string toml_problem(std::string_view text, const TextLimits& limits = {});

}  // namespace vitrum
