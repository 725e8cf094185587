#include "vitrum/core/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

std::string_view short_escape(char32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return {};
  }
}

template <class T>
std::string number(T x) {
  return std::isfinite(x) ? fmt::format("{}", x) : "null";
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    if (const auto escape = short_escape(c.value); !escape.empty())
      out += escape;
    else if (c.value < 0x20 || (c.value >= 0x7f && c.value < 0xa0))  // for TOML and terminals too
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c.value));
    else
      out += spelling(text, c);
  }
  return out + '"';
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_ += json_string(name) + ':';
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(double x) { return raw(number(x)); }
JsonWriter& JsonWriter::value(float x) { return raw(number(x)); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  text_ += json;
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  need_comma_ = true;
  return *this;
}

void JsonWriter::separate() {
  if (need_comma_) text_ += ',';
  need_comma_ = true;
}

}  // namespace vitrum
