#include <fmt/format.h>

#include <algorithm>

#include "vitrum/cli/parse.h"
#include "vitrum/core/join.h"
#include "vitrum/core/progress.h"

namespace vitrum {
namespace {

constexpr size_t kWidth = 80;

// `text` in lines that end before column kWidth, the first starting at column `from`, the others at
// `indent`.
std::string wrapped(const std::string& text, size_t from, size_t indent) {
  std::string out;
  size_t column = from, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (column > indent && column + 1 + (end - at) > kWidth)
      out += fmt::format("\n{:{}}", "", indent), column = indent;
    else if (at > 0)
      out += ' ', ++column;
    out += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return out;
}

// A command line to copy: where it is too long it goes on behind a backslash, before an option.
std::string command(const std::string& text) {
  constexpr size_t kIndent = 6;
  std::string out;
  size_t at = 0, column = 2;
  while (column + (text.size() - at) > kWidth) {
    const size_t end = text.rfind(" --", at + kWidth - 2 - column);
    if (end == text.npos || end <= at) break;
    out += fmt::format("{} \\\n{:{}}", text.substr(at, end - at), "", kIndent);
    at = end + 1, column = kIndent;
  }
  return out + text.substr(at);
}

std::string heading(std::string_view text) {
  return use_colour(stdout) ? fmt::format("\033[1m{}\033[0m\n", text) : fmt::format("{}\n", text);
}

std::string default_value(const Option& option) {
  struct Defaults {
    std::string operator()(const int64_t* n) const { return std::to_string(*n); }
    std::string operator()(const double* x) const { return fmt::format("{}", *x); }
    std::string operator()(const std::string* s) const { return *s; }
    std::string operator()(const void*) const { return ""; }
  };
  if (option.required) return is_positional(option) ? "" : "required";
  const std::string text = std::visit(Defaults{}, option.target);
  return text.empty() ? "" : fmt::format("default {}", text);
}

std::string describe(const Option& option) {
  constexpr size_t kIndent = 26;
  const size_t comma = option.name.find(',');  // "-q,--quiet"
  std::string name = comma == std::string::npos
                         ? option.name
                         : fmt::format("{}, {}", option.name.substr(0, comma), long_name(option));
  if (!is_positional(option)) name += fmt::format(" {}", value_name(option));
  // A name too long for its column gets a line of its own.
  return fmt::format("  {:<{}}{}{}\n", name, kIndent - 2,
                     name.size() + 3 > kIndent ? fmt::format("\n{:{}}", "", kIndent) : "",
                     wrapped(explanation(option), kIndent, kIndent));
}

}  // namespace

// What stands beside a name: nothing for a flag.
std::string value_name(const Option& option) {
  struct Names {
    std::string operator()(bool*) const { return ""; }
    std::string operator()(int64_t*) const { return "N"; }
    std::string operator()(std::optional<int64_t>*) const { return "N"; }
    std::string operator()(double*) const { return "X"; }
    std::string operator()(std::optional<double>*) const { return "X"; }
    std::string operator()(std::optional<InputSize>*) const { return "N|HxW"; }
    std::string operator()(void*) const { return "TEXT"; }
  };
  return option.value.empty() ? std::visit(Names{}, option.target) : option.value;
}

std::string explanation(const Option& option) {
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format(" [{}]", join(option.choices, ", "));
  const std::string fallback = default_value(option);
  return fallback.empty() ? text : fmt::format("{} ({})", text, fallback);
}

std::string usage_arguments(const Verb& verb) {
  std::string out;
  for (const Option& option : verb.options) {
    if (!is_positional(option)) continue;
    const std::string name = option.name + (is_list(option) ? "..." : "");
    out += option.required ? name + ' ' : fmt::format("[{}] ", name);
  }
  return out;
}

std::string overview(std::span<const Verb> verbs) {
  std::string out =
      heading("Examples:") +
      "  vitrum train --recipe recipes/fashion-mnist.toml\n"
      "  vitrum classify photos/ --model DIR\n"
      "  vitrum summary vit_base_patch16_224\n"
      "  vitrum doctor\n\n"
      "Usage: vitrum VERB [options]\nVision transformers: train, evaluate and inspect them.\n\n" +
      heading("Verbs:");
  for (const Verb& verb : verbs)
    out += fmt::format("  {:<12}{}\n", verb.name, wrapped(verb.summary, 14, 14));
  return out + "\n`vitrum VERB --help` explains a verb, `vitrum --version` prints the version.\n";
}

std::string help_text(const Verb& verb) {
  std::string examples, own, shared;
  for (const std::string& example : verb.examples)
    examples += fmt::format("  {}\n", command("vitrum " + example));
  for (const Option& option : verb.options) own += describe(option);
  CommonOptions defaults;
  for (const Option& option : common_options(defaults)) shared += describe(option);
  if (!own.empty()) own = fmt::format("{}{}\n", heading("Options:"), own);
  return fmt::format(
      "{}{}\nUsage: vitrum {} {}[options]\n{}\n\n{}{}{}\n"
      "An option may come from the environment too: --threads from VITRUM_THREADS.\n",
      heading("Examples:"), examples, verb.name, usage_arguments(verb), wrapped(verb.summary, 0, 0),
      own, heading("Options of every verb:"), shared);
}

}  // namespace vitrum
