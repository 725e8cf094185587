// "did you mean": the closest known word to a mistyped one.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace vitrum {

// The candidate with the smallest edit distance to `word`, case ignored; none when all are too
// different to be what was meant.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean 'x'?" or "", to end an error message with.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// What other frameworks call something, and what it is called here.
struct OtherName {
  std::string_view other, ours;
};
// The same; a word of another framework stands for ours where that is a candidate. Case does not
// matter, nor does - or _ between words.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates,
                         std::span<const OtherName> others);

}  // namespace vitrum
