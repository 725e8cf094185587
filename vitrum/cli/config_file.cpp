#include "vitrum/cli/config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/text_limits.h"

namespace vitrum {
namespace {

std::string word_of(const std::string& path, std::string_view key, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  fail_input("{}: {}: expected a text, a number, or true or false", path, key);
}

// Whether that line gives a value without any.
bool has_no_quotes(const std::string& file, size_t line) {
  size_t at = 0;
  for (size_t i = 1; i < line && at != file.npos; ++i) at = file.find('\n', at) + 1;
  const std::string text = file.substr(at, file.find('\n', at) - at);
  return text.find('=') != text.npos && text.find_first_of("\"'[]{}") == text.npos;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> read_config(const std::string& path) {
  constexpr size_t kMostBytes = 1 << 20;
  const std::string text = read_file(path, kMostBytes);
  if (const std::string problem = toml_problem(text); !problem.empty())
    fail_input("{}: it {}", path, problem);
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& e) {
    const auto line = e.source().begin.line;
    fail_input("{}:{}: {}{}", path, line, shown(e.description()),
               has_no_quotes(text, line) ? "; text needs quotes" : "");
  }
  struct Placed {
    toml::source_position at;
    std::string key, word;
  };
  std::vector<Placed> placed;  // the parser sorts by name, but the first model is the usual one
  const auto place = [&](const std::string& key, const toml::node& node, const std::string& name) {
    placed.push_back({node.source().begin, key, name + word_of(path, key, node)});
  };
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& each : *list) place(name, each, "");
    } else if (const toml::table* named = node.as_table()) {
      for (const auto& [inner, each] : *named) place(name, each, std::string(inner.str()) + "=");
    } else {
      place(name, node, "");
    }
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.at < b.at; });
  std::vector<std::pair<std::string, std::string>> words;
  for (Placed& p : placed) words.emplace_back(std::move(p.key), std::move(p.word));
  return words;
}

}  // namespace vitrum
