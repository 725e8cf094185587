// From an argument vector to filled-in options, and from the table of verbs to help texts.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"

namespace vitrum {

struct Invocation {
  const Verb* verb = nullptr;  // null: none was named
  bool help = false, version = false;
};

// Fills the targets of the verb that is named, and `common`, from the arguments and the
// environment. Options may stand before or after positional arguments, common ones before the verb
// too; the last one given counts. Whatever is wrong is a usage error with the nearest match.
Invocation parse_command_line(std::span<const std::string> arguments, std::span<const Verb> verbs,
                              CommonOptions& common);

std::string overview(std::span<const Verb> verbs);
std::string help_text(const Verb& verb);

// What every verb takes, bound to `common`.
std::vector<Option> common_options(CommonOptions& common);

inline bool is_positional(const Option& option) { return !option.name.starts_with('-'); }
std::string long_name(const Option& option);         // "--quiet" of "-q,--quiet"
std::string environment_name(const Option& option);  // "VITRUM_BATCH_SIZE" of "--batch-size"

}  // namespace vitrum
