#include "vitrum/cli/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "vitrum/cli/config_file.h"
#include "vitrum/cli/other_names.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/train/recipe.h"

namespace vitrum {
namespace {

// A word for an option, and where it was given, for messages.
struct Given {
  const Option& option;
  std::string word, where;
};

[[noreturn]] void wrong(const Given& given, std::string_view expected) {
  fail_usage("{}: expected {}, not '{}'", given.where, expected, given.word);
}

template <class T>
T number(const Given& given, std::string_view expected) {
  const char* end = given.word.data() + given.word.size();
  T x{};
  const auto [stop, code] = std::from_chars(given.word.data(), end, x);
  if (code != std::errc() || stop != end) wrong(given, expected);
  return x;
}

void assign(const Given& given, bool* target) {
  const auto is = [&](std::initializer_list<const char*> words) {
    return std::find(words.begin(), words.end(), given.word) != words.end();
  };
  *target = is({"1", "true", "yes", "on"});
  if (!*target && !is({"0", "false", "no", "off"})) wrong(given, "true or false");
}

void assign(const Given& given, int64_t* target) {
  const int64_t low = given.option.min, high = given.option.max;
  const std::string expected = fmt::format("a whole number from {} to {}", low, high);
  const auto n = number<int64_t>(given, expected);
  if (n < low || n > high) wrong(given, expected);
  *target = n;
}

void assign(const Given& given, double* target) {
  const int64_t low = given.option.min, high = given.option.max;
  const std::string expected = fmt::format("a number from {} to {}", low, high);
  const auto x = number<double>(given, expected);
  // And no NaN.
  if (!(x >= static_cast<double>(low) && x <= static_cast<double>(high))) wrong(given, expected);
  *target = x;
}

void assign(const Given& given, std::string* target) {
  const std::vector<std::string>& choices = given.option.choices;
  if (!choices.empty() && std::find(choices.begin(), choices.end(), given.word) == choices.end())
    fail_usage("{}: expected {}, not '{}'{}", given.where, join(choices, ", "), given.word,
               did_you_mean(given.word, choices, other_values()));
  *target = given.word;
}

// "224", or "160x320": height and width.
void assign(const Given& given, InputSize* target) {
  const size_t cross = given.word.find('x');
  const auto edge = [&](const std::string& word) {
    const int64_t low = given.option.min, high = given.option.max;
    const char* end = word.data() + word.size();
    int64_t n = 0;
    const auto [stop, code] = std::from_chars(word.data(), end, n);
    if (code != std::errc() || stop != end || n < low || n > high)
      wrong(given, fmt::format("N or HxW, each from {} to {}", low, high));
    return n;
  };
  target->height = edge(given.word.substr(0, cross));
  target->width = cross == std::string::npos ? target->height : edge(given.word.substr(cross + 1));
}

void assign(const Given& given, std::vector<std::string>* target) { target->push_back(given.word); }

template <class T>
void assign(const Given& given, std::optional<T>* target) {
  T x{};
  assign(given, &x);
  *target = std::move(x);
}

class Parser {
 public:
  Parser(std::span<const std::string> arguments, std::span<const Verb> verbs,
         const std::vector<Option>& common)
      : arguments_(arguments), verbs_(verbs), common_(common) {}

  Invocation run() {
    for (at_ = 0; at_ < arguments_.size(); ++at_) {
      const std::string& word = arguments_[at_];
      if (literal_ || word.size() < 2 || word[0] != '-')
        take_word(word);
      else if (word == "--")
        literal_ = true;
      else if (word[1] == '-')
        take_long(word);
      else
        take_short(word);
    }
    if (result_.help || result_.version) return result_;
    if (!result_.verb && !arguments_.empty()) fail_usage("no verb is given; {}", see_help());
    result_.help = !result_.verb;
    for (const Option* option : known()) from_environment(*option);
    from_config();
    if (result_.verb) check_required();
    return result_;
  }

 private:
  std::vector<const Option*> known() const { return options_of(result_.verb, common_); }
  std::string see_help() const {
    return result_.verb ? fmt::format("see `vitrum {} --help`", result_.verb->name)
                        : "see `vitrum --help`";
  }
  void set(const Option& option, const std::string& word, const std::string& where) {
    std::visit([&](auto* target) { assign({option, word, where}, target); }, option.target);
    given_.push_back(&option);
  }
  bool was_given(const Option& option) const {
    return std::find(given_.begin(), given_.end(), &option) != given_.end();
  }

  void take_word(const std::string& word) {
    if (!result_.verb) return choose_verb(word);
    for (const Option& option : result_.verb->options)
      if (is_positional(option) && (is_list(option) || !was_given(option)))
        return set(option, word, option.name);
    fail_usage("unexpected argument '{}'; {}", word, see_help());
  }

  void choose_verb(const std::string& word) {
    if (word == "help") return void(result_.help = true);  // `vitrum help train`
    std::vector<std::string> names;
    for (const Verb& verb : verbs_) {
      if (verb.name == word) result_.verb = &verb;
      names.push_back(verb.name);
    }
    if (!result_.verb)
      fail_usage("unknown verb '{}'{}; {}", word, did_you_mean(word, names, other_verbs()),
                 see_help());
  }

  void take_long(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "--help") return void(result_.help = true);
    if (name == "--version") return void(result_.version = true);
    if (const Option* option = find_option(known(), name))
      return set(*option,
                 equals == std::string::npos ? value_of(*option, name) : word.substr(equals + 1),
                 name);
    fail_usage("unknown option '{}'{}; {}", name, near_option(name), see_help());
  }

  // Where a verb takes --set, its keys are options too.
  std::string near_option(const std::string& name) const {
    std::vector<std::string> names = {"--help", "--version"};
    for (const Option* option : known())
      if (!is_positional(*option)) names.push_back(long_name(*option));
    const auto has = [&](const std::string& option) {
      return std::find(names.begin(), names.end(), option) != names.end();
    };
    const std::string key = has("--set") ? find_key(name.substr(2)) : "";
    if (key.empty()) return did_you_mean(name, names, other_options());
    std::string option = "--" + key;
    std::replace(option.begin(), option.end(), '_', '-');
    return fmt::format("; did you mean '{}'?", has(option) ? option : "--set " + key + "=VALUE");
  }

  void take_short(const std::string& word) {  // "-q", "-qv"
    for (char letter : word.substr(1)) {
      if (letter == 'h') {
        result_.help = true;
        continue;
      }
      const std::string name = {'-', letter};
      const auto all = known();
      const auto option = std::find_if(all.begin(), all.end(),
                                       [&](auto* o) { return o->name.starts_with(name + ","); });
      if (option == all.end()) fail_usage("unknown option '{}'; {}", word, see_help());
      set(**option, value_of(**option, name), name);
    }
  }

  std::string value_of(const Option& option, const std::string& name) {
    if (is_flag(option)) return "true";
    if (at_ + 1 == arguments_.size()) fail_usage("{} needs a value; {}", name, see_help());
    return arguments_[++at_];
  }

  void from_environment(const Option& option) {
    if (is_positional(option) || was_given(option)) return;
    const std::string name = environment_name(option);
    const char* value = std::getenv(name.c_str());
    if (value && *value) set(option, value, name);
  }

  // What neither the command line nor the environment says.
  void from_config() {
    if (!result_.verb) return;
    const std::vector<Option>& own = result_.verb->options;
    const auto config =
        std::find_if(own.begin(), own.end(), [](const Option& o) { return o.name == "--config"; });
    if (config == own.end() || !was_given(*config)) return;
    const std::string path = *std::get<std::string*>(config->target);
    const std::vector<const Option*> before = given_;
    for (const auto& [key, word] : read_config(path)) {
      std::string name = "--" + key;
      std::replace(name.begin(), name.end(), '_', '-');
      const Option* option = find_option(known(), name);
      if (!option || option == &*config)
        fail_input("{}: unknown key '{}'{}", path, key, near_option(name));
      if (std::find(before.begin(), before.end(), option) == before.end())
        set(*option, word, fmt::format("{}: {}", path, key));
    }
  }

  void check_required() const {
    for (const Option& option : result_.verb->options)
      if (option.required && !was_given(option))
        fail_usage("{} needs {}; {}", result_.verb->name, long_name(option), see_help());
  }

  std::span<const std::string> arguments_;
  std::span<const Verb> verbs_;
  const std::vector<Option>& common_;
  size_t at_ = 0;
  bool literal_ = false;  // after "--"
  Invocation result_;
  std::vector<const Option*> given_;
};

}  // namespace

Invocation parse_command_line(std::span<const std::string> arguments, std::span<const Verb> verbs,
                              CommonOptions& common) {
  common.arguments.assign(arguments.begin(), arguments.end());
  const std::vector<Option> shared = common_options(common);
  return Parser(arguments, verbs, shared).run();
}

std::vector<const Option*> options_of(const Verb* verb, std::span<const Option> common) {
  std::vector<const Option*> all;
  if (verb)
    for (const Option& option : verb->options) all.push_back(&option);
  for (const Option& option : common) all.push_back(&option);
  return all;
}

const Option* find_option(std::span<const Option* const> options, const std::string& name) {
  const auto find = [&](const auto& fits) -> const Option* {
    const auto found = std::find_if(options.begin(), options.end(), fits);
    return found == options.end() ? nullptr : *found;
  };
  const auto is = [&](const std::string& wanted) {
    return find([&](const Option* o) { return !is_positional(*o) && long_name(*o) == wanted; });
  };
  if (const Option* option = is(name)) return option;
  if (const Option* option = find([&](const Option* o) {
        return std::find(o->also.begin(), o->also.end(), name) != o->also.end();
      }))
    return option;
  for (const std::string& other : alike(name))
    if (const Option* option = is(other)) return option;
  return nullptr;
}

std::string long_name(const Option& option) {
  return option.name.substr(option.name.find(',') + 1);
}

std::string environment_name(const Option& option) {
  std::string name = "VITRUM_" + long_name(option).substr(2);
  for (char& c : name)
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<Option> common_options(CommonOptions& common) {
  return {{"--json", &common.json, "print JSON on standard output, and nothing else there"},
          {"-q,--quiet", &common.quiet, "no progress and no remarks"},
          {"-v,--verbose", &common.verbose, "more remarks"},
          {.name = "--threads",
           .target = &common.threads,
           .help = "threads to compute with; 0: all cores",
           .max = 4096},
          {"--device", &common.device, "auto, cpu, cuda[:N] or reference", "DEVICE"},
          {.name = "--precision",
           .target = &common.precision,
           .help = "of the arithmetic; auto suits the device, int8 and fp8 do not train",
           .value = "NAME",
           .choices = {"auto", "f32", "bf16", "int8", "fp8"}}};
}

}  // namespace vitrum
