#include "vitrum/weights/json_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/text_limits.h"
#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

using Json = nlohmann::json;

constexpr TextLimits kLimits{.depth = 16, .values = 2 << 20};
constexpr size_t kMaxName = 256;  // of an architecture, a filter: nothing that is named is longer

const Json& json(const std::shared_ptr<const void>& object) {
  return *static_cast<const Json*>(object.get());
}

const Json* find(const std::shared_ptr<const void>& object, const std::string& key) {
  const auto at = json(object).find(key);
  return at == json(object).end() || at->is_null() ? nullptr : &*at;
}

std::string shown(const Json& j) {
  return fit_columns(j.dump(-1, ' ', false, Json::error_handler_t::replace), 40);
}

[[noreturn]] void wrong(const JsonKeys& keys, const std::string& key, const Json& found,
                        const std::string& expected) {
  fail_input("{}: {} must be {}, not {}", keys.where(), key, expected, shown(found));
}

int64_t whole(const JsonKeys& keys, const std::string& key, const Json& j, IntRange range) {
  const bool fits =
      j.is_number_unsigned() ? j.get<uint64_t>() <= uint64_t{INT64_MAX} : j.is_number_integer();
  if (!fits || j.get<int64_t>() < range.low || j.get<int64_t>() > range.high)
    wrong(keys, key, j, fmt::format("a whole number from {} to {}", range.low, range.high));
  return j.get<int64_t>();
}

const Json& list(const JsonKeys& keys, const std::string& key, const Json* j) {
  static const Json empty = Json::array();
  if (j && !j->is_array()) wrong(keys, key, *j, "a list");
  return j ? *j : empty;
}

std::shared_ptr<const void> parse(const std::string& text, const std::string& path) {
  if (const std::string problem = json_problem(text, kLimits); !problem.empty())
    fail_input("{}: it {}", path, problem);
  try {
    return std::make_shared<const Json>(Json::parse(text));
  } catch (const Json::exception& e) {
    const std::string what =
        e.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    const size_t at = what.find("] ");
    fail_input("{}: {}", path, fit_columns(at == what.npos ? what : what.substr(at + 2), 200));
  }
}

}  // namespace

JsonKeys::JsonKeys(const std::string& text, const std::string& path)
    : JsonKeys(parse(text, path), path) {}

JsonKeys::JsonKeys(std::shared_ptr<const void> object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {
  if (!json(object_).is_object())
    fail_input("{}: expected an object, found {}", where_, shown(json(object_)));
}

bool JsonKeys::has(const std::string& key) const { return find(object_, key) != nullptr; }

bool JsonKeys::is_number(const std::string& key) const {
  const Json* j = find(object_, key);
  return j && j->is_number();
}

int64_t JsonKeys::integer(const std::string& key, int64_t fallback, IntRange range) const {
  const Json* j = find(object_, key);
  return j ? whole(*this, key, *j, range) : fallback;
}

double JsonKeys::number(const std::string& key, double fallback, double low, double high) const {
  const Json* j = find(object_, key);
  if (!j) return fallback;
  if (!j->is_number() || !(j->get<double>() >= low && j->get<double>() <= high))
    wrong(*this, key, *j, fmt::format("a number in [{}, {}]", low, high));
  return j->get<double>();
}

bool JsonKeys::boolean(const std::string& key, bool fallback) const {
  const Json* j = find(object_, key);
  if (j && !j->is_boolean()) wrong(*this, key, *j, "true or false");
  return j ? j->get<bool>() : fallback;
}

std::string JsonKeys::text(const std::string& key, const std::string& fallback) const {
  const Json* j = find(object_, key);
  if (j && !j->is_string()) wrong(*this, key, *j, "a text");
  if (j && j->get_ref<const std::string&>().size() > kMaxName)
    wrong(*this, key, *j, fmt::format("a text of at most {} bytes", kMaxName));
  return j ? j->get<std::string>() : fallback;
}

size_t JsonKeys::choice(const std::string& key, size_t fallback,
                        std::span<const std::string_view> names) const {
  const Json* j = find(object_, key);
  if (!j) return fallback;
  const std::string word = text(key, {});
  const auto at = std::find(names.begin(), names.end(), word);
  if (at == names.end())
    wrong(*this, key, *j,
          "one of " + join(std::vector<std::string>(names.begin(), names.end()), ", "));
  return static_cast<size_t>(at - names.begin());
}

std::pair<int64_t, int64_t> JsonKeys::pair(const std::string& key,
                                           std::pair<int64_t, int64_t> fallback,
                                           IntRange range) const {
  const Json* j = find(object_, key);
  if (!j) return fallback;
  if (!j->is_array()) return {whole(*this, key, *j, range), whole(*this, key, *j, range)};
  if (j->size() != 2) wrong(*this, key, *j, "one number or two");
  return {whole(*this, key, (*j)[0], range), whole(*this, key, (*j)[1], range)};
}

std::vector<int64_t> JsonKeys::integers(const std::string& key, IntRange range) const {
  std::vector<int64_t> all;
  for (const Json& j : list(*this, key, find(object_, key)))
    all.push_back(whole(*this, key, j, range));
  return all;
}

std::vector<float> JsonKeys::floats(const std::string& key) const {
  std::vector<float> all;
  for (const Json& j : list(*this, key, find(object_, key))) {
    if (!j.is_number() || !(std::abs(j.get<double>()) <= 1e6))
      wrong(*this, key, j, "numbers up to 1e6");
    all.push_back(j.get<float>());
  }
  return all;
}

std::vector<std::string> JsonKeys::texts(const std::string& key) const {
  std::vector<std::string> all;
  for (const Json& j : list(*this, key, find(object_, key))) {
    if (!j.is_string()) wrong(*this, key, j, "a list of texts");
    all.push_back(j.get<std::string>());
  }
  return all;
}

std::vector<std::string> JsonKeys::numbered_texts(const std::string& key) const {
  const JsonKeys inner = object(key);
  std::vector<std::string> all(json(inner.object_).size());
  for (size_t i = 0; i < all.size(); ++i) {
    const Json* j = find(inner.object_, std::to_string(i));
    if (!j || !j->is_string())
      fail_input("{}: expected a text for each of \"0\" to \"{}\"; {} is not one", inner.where_,
                 all.size() - 1, i);
    all[i] = j->get<std::string>();
  }
  return all;
}

JsonKeys JsonKeys::object(const std::string& key) const {
  static const auto empty = std::make_shared<const Json>(Json::object());
  const Json* j = find(object_, key);
  return {j ? std::shared_ptr<const void>(object_, j) : empty,
          where_ + (where_.ends_with(".json") ? ": " : ".") + key};
}

std::string JsonKeys::dumped(const std::string& key) const {
  return json(object(key).object_).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void JsonKeys::only(std::vector<std::string> known, std::span<const Fixed> fixed) const {
  for (const Fixed& f : fixed) known.push_back(f.first);
  for (const auto& [key, value] : json(object_).items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail_input("{}: unknown key '{}'{}", where_, vitrum::shown(key), did_you_mean(key, known));
  require(fixed);
}

void JsonKeys::require(std::span<const Fixed> fixed) const {
  for (const auto& [key, wanted] : fixed) {
    const Json* j = find(object_, key);
    if (j && *j != Json::parse(wanted))
      fail_input("{}: {} = {} is not supported", where_, key, shown(*j));
  }
}

}  // namespace vitrum
