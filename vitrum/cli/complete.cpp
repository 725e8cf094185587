#include "vitrum/cli/complete.h"

#include <algorithm>

#include "vitrum/cli/parse.h"
#include "vitrum/data/dataset.h"
#include "vitrum/models/registry.h"
#include "vitrum/train/recipe.h"

namespace vitrum {
namespace {

using Paths = Completion::Paths;

// One value of an option, of which `typed` is there, behind `before` in the same word
// ("--model=").
class Value {
 public:
  Value(std::string before, std::string typed)
      : before_(std::move(before)), typed_(std::move(typed)) {}

  Completion of(const Option& option) {
    const std::string kind = is_positional(option) ? option.name : value_name(option);
    if (!option.choices.empty()) {
      for (const std::string& choice : option.choices) add(choice);
    } else if (kind == "VERB") {
      for (const Verb& verb : all_verbs()) add(verb.name, verb.summary);
    } else if (kind == "DEVICE") {
      for (const char* device : {"auto", "cpu", "cuda", "reference"}) add(device);
    } else if (kind == "PRESET" || kind == "MODEL") {
      for (const Preset& preset : presets()) add(preset.name);
      if (kind == "MODEL") paths(Paths::kFiles);  // weight files too
    } else if (kind == "DATA") {
      data();
    } else if (kind == "KEY=VALUE") {
      for (const std::string& key : recipe_keys()) add(key + "=");
    } else {
      by_ending(kind);
    }
    return std::move(result_);
  }

 private:
  void add(const std::string& word, const std::string& help = "") {
    if (word.starts_with(typed_)) result_.candidates.push_back({before_ + word, help});
  }
  void paths(Paths kind, const std::string& behind = "", const std::string& suffix = "") {
    result_.paths = kind, result_.prefix = before_ + behind, result_.suffix = suffix;
  }

  void data() {
    const size_t colon = typed_.find(':');
    if (colon != typed_.npos) {
      const std::string kind = typed_.substr(0, colon);
      const bool file = kind == "csv" || kind == "parquet";
      return paths(file ? Paths::kFiles : Paths::kDirectories, kind + ":");
    }
    for (const std::string& kind : data_kinds()) {
      if (kind == "fashion-mnist") add(kind, "Debian's package");
      add(kind + ":");
    }
  }

  // "[NAME=]DIR", "unix:PATH", "FILE.toml".
  void by_ending(const std::string& kind) {
    const auto ends = [&](std::initializer_list<const char*> endings) {
      return std::any_of(endings.begin(), endings.end(), [&](auto e) { return kind.ends_with(e); });
    };
    const size_t equals = kind.starts_with("[NAME=]") ? typed_.find('=') + 1 : 0;
    if (const size_t file = kind.find("FILE."); file != kind.npos)
      paths(Paths::kFiles, "", kind.substr(file + 4));
    else if (ends({"DIR", "RUN"}))
      paths(Paths::kDirectories, typed_.substr(0, equals));
    else if (kind == "unix:PATH" && !typed_.starts_with("unix:"))
      add("unix:");
    else if (ends({"FILE", "PATH", "IMAGE", "SRC", "DST"}))
      paths(Paths::kFiles, kind == "unix:PATH" ? "unix:" : "");
  }

  std::string before_, typed_;
  Completion result_;
};

class CommandLine {
 public:
  explicit CommandLine(std::span<const std::string> words)
      : typed_(words.empty() ? "" : words.back()) {
    for (size_t i = 0; i + 1 < words.size(); ++i) take(words[i]);
  }

  Completion next() const {
    if (wants_value_) return Value("", typed_).of(*wants_value_);
    if (!literal_ && typed_.starts_with("--") && typed_.find('=') != typed_.npos) {
      const size_t value = typed_.find('=') + 1;
      const Option* option = find_option(known(), typed_.substr(0, value - 1));
      if (!option) return {};
      return Value(typed_.substr(0, value), typed_.substr(value)).of(*option);
    }
    if (!literal_ && typed_.starts_with('-')) return options();
    if (!verb_) return verbs();
    if (const Option* argument = next_argument()) return Value("", typed_).of(*argument);
    return literal_ ? Completion{} : options();
  }

 private:
  std::vector<const Option*> known() const { return options_of(verb_, common_options_); }

  void take(const std::string& word) {
    if (wants_value_) return void(wants_value_ = nullptr);
    if (literal_ || word.size() < 2 || word[0] != '-') return take_argument(word);
    if (word == "--") return void(literal_ = true);
    given_.push_back(word.substr(0, word.find('=')));
    if (word[1] != '-' || word.find('=') != word.npos) return;  // short ones are flags
    const Option* option = find_option(known(), word);
    if (option && !is_flag(*option)) wants_value_ = option;
  }

  void take_argument(const std::string& word) {
    if (verb_) return void(++arguments_);
    if (word == "help") return void(help_ = true);
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const Verb& verb) { return verb.name == word; });
    if (found != all_.end()) verb_ = &*found;
  }

  // The argument without a name that comes next; the last may take any number of words.
  const Option* next_argument() const {
    size_t left = arguments_;
    for (const Option& option : verb_->options) {
      if (!is_positional(option)) continue;
      if (left == 0 || is_list(option)) return &option;
      --left;
    }
    return nullptr;
  }

  Completion verbs() const {
    Completion result;
    const auto add = [&](const std::string& name, const std::string& help) {
      if (name.starts_with(typed_)) result.candidates.push_back({name, help});
    };
    for (const Verb& verb : all_) add(verb.name, verb.summary);
    if (!help_) add("help", "explain a verb");
    return result;
  }

  Completion options() const {
    Completion result;
    const auto add = [&](const std::string& name, const std::string& help, bool again) {
      const bool given = std::find(given_.begin(), given_.end(), name) != given_.end();
      if (name.starts_with(typed_) && (again || !given)) result.candidates.push_back({name, help});
    };
    for (const Option* option : known())
      if (!is_positional(*option)) add(long_name(*option), option->help, is_list(*option));
    add("--help", "explain", false);
    if (!verb_) add("--version", "print the version", false);
    return result;
  }

  const std::vector<Verb> all_ = all_verbs();
  CommonOptions common_;
  const std::vector<Option> common_options_ = common_options(common_);
  std::string typed_;
  const Verb* verb_ = nullptr;
  const Option* wants_value_ = nullptr;
  std::vector<std::string> given_;
  size_t arguments_ = 0;
  bool literal_ = false, help_ = false;  // after "--", after "help"
};

}  // namespace

Completion complete(std::span<const std::string> words) { return CommandLine(words).next(); }

}  // namespace vitrum
