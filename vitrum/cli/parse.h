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
// environment, and where the verb has a --config, from that file. Options may stand before or after
// positional arguments, common ones before the verb too; the last one given counts. Whatever is
// wrong is a usage error with the nearest match.
Invocation parse_command_line(std::span<const std::string> arguments, std::span<const Verb> verbs,
                              CommonOptions& common);

std::string overview(std::span<const Verb> verbs);
std::string help_text(const Verb& verb);
// Parts of a help text that man pages share: "IMAGE... [DATA] ", "N", and what an option does with
// its choices and default.
std::string usage_arguments(const Verb& verb);
std::string value_name(const Option& option);
std::string explanation(const Option& option);

// What every verb takes, bound to `common`.
std::vector<Option> common_options(CommonOptions& common);

// Of the verb, which may be null, and those of every verb behind them.
std::vector<const Option*> options_of(const Verb* verb, std::span<const Option> common);
// By its name ("--batch-size"), by another spelling of its own, or by one that is as good
// everywhere; null where there is none.
const Option* find_option(std::span<const Option* const> options, const std::string& name);

inline bool is_positional(const Option& option) { return !option.name.starts_with('-'); }
inline bool is_flag(const Option& option) { return std::holds_alternative<bool*>(option.target); }
inline bool is_list(const Option& option) {
  return std::holds_alternative<std::vector<std::string>*>(option.target);
}
std::string long_name(const Option& option);         // "--quiet" of "-q,--quiet"
std::string environment_name(const Option& option);  // "VITRUM_BATCH_SIZE" of "--batch-size"

}  // namespace vitrum
