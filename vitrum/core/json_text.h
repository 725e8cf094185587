// JSON output without a DOM. Bytes that are not UTF-8 become U+FFFD, NaN and infinities null.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrum {

// The text in quotes.
std::string json_string(std::string_view text);

// JsonWriter json;
// json.begin_object().field("epoch",
// 3).key("shape").begin_array().value(2).end_array().end_object(); json.str() ==
// R"({"epoch":3,"shape":[2]})"
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text) { return raw(json_string(text)); }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(std::integral auto n) {
    if constexpr (std::same_as<decltype(n), bool>)
      return raw(n ? "true" : "false");
    else
      return raw(std::to_string(n));
  }
  JsonWriter& value(double x);  // the fewest digits that read back as the same number
  JsonWriter& value(float x);
  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json);  // a value that is JSON already

  template <class T>
  JsonWriter& field(std::string_view name, const T& x) {
    return key(name).value(x);
  }

  const std::string& str() const { return text_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string text_;
  bool need_comma_ = false;
};

}  // namespace vitrum
