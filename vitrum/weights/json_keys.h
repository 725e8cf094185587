// One object of a config file from elsewhere. Nothing in it is trusted: a key that is missing or
// null gives the fallback; a wrong type or range is an error that names file and key.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vitrum {

struct IntRange {
  int64_t low, high;
};

class JsonKeys {
 public:
  // The text must be one object; `path` is for messages.
  JsonKeys(const std::string& text, const std::string& path);

  bool has(const std::string& key) const;
  bool is_number(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t fallback, IntRange range) const;
  double number(const std::string& key, double fallback, double low, double high) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;  // a name: short
  size_t choice(const std::string& key, size_t fallback,
                std::span<const std::string_view> names) const;  // position in `names`

  // [a, b], or one number for both.
  std::pair<int64_t, int64_t> pair(const std::string& key, std::pair<int64_t, int64_t> fallback,
                                   IntRange range) const;
  std::vector<int64_t> integers(const std::string& key, IntRange range) const;
  std::vector<float> floats(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  // {"0": "cat", "1": "dog"}: every key from 0 on must be there.
  std::vector<std::string> numbered_texts(const std::string& key) const;

  JsonKeys object(const std::string& key) const;     // empty where there is none
  std::string dumped(const std::string& key) const;  // that object as JSON

  // Fails at a key that is not known, or at one of `fixed` with another value than the only one we
  // have, given as JSON text.
  using Fixed = std::pair<std::string, std::string>;
  void only(std::vector<std::string> known, std::span<const Fixed> fixed = {}) const;
  // The same for `fixed` alone: other keys may be anything.
  void require(std::span<const Fixed> fixed) const;

  const std::string& where() const { return where_; }

 private:
  JsonKeys(std::shared_ptr<const void> object, std::string where);

  std::shared_ptr<const void> object_;  // a value inside the parsed document, which it keeps alive
  std::string where_;
};

}  // namespace vitrum
