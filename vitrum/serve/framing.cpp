#include "vitrum/serve/framing.h"

#include <algorithm>
#include <cctype>

namespace vitrum::serve {
namespace {

bool same(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_token(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](unsigned char c) {
    return std::isalnum(c) || kMarks.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

bool is_clean(std::string_view value) {
  return std::none_of(value.begin(), value.end(),
                      [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
}

}  // namespace

std::optional<std::string_view> refuse_framing(int minor, std::span<const HeaderField> fields) {
  int hosts = 0, lengths = 0, encodings = 0;
  for (const auto& [name, value] : fields) {
    if (!is_token(name)) return "a header name has characters that no name has";
    if (!is_clean(value)) return "a header has control bytes";
    if (same(name, "host")) {
      ++hosts;
      // A header that goes on in another line was joined to this one by a blank.
      if (value.empty() || value.find_first_of(" \t") != std::string_view::npos)
        return "the Host header is not the name of a host";
    }
    if (same(name, "content-length")) {
      ++lengths;
      if (!is_number(value)) return "Content-Length is no plain number";
    }
    if (same(name, "transfer-encoding")) {
      ++encodings;
      if (!same(value, "chunked")) return "the only Transfer-Encoding taken is chunked";
    }
  }
  if (hosts != 1) return "a request has exactly one Host header";
  if (lengths > 1) return "there is more than one Content-Length";
  if (encodings > 1) return "there is more than one Transfer-Encoding";
  if (encodings > 0 && lengths > 0)
    return "Transfer-Encoding and Content-Length exclude each other";
  if (encodings > 0 && minor == 0) return "HTTP/1.0 has no Transfer-Encoding";
  return std::nullopt;
}

}  // namespace vitrum::serve
