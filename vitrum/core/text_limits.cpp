#include "vitrum/core/text_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace vitrum {
namespace {

std::string has_nul(std::string_view text) {
  const size_t at = text.find('\0');
  return at == text.npos ? "" : fmt::format("has a NUL, which no text has, at byte {}", at);
}

std::string too_deep(const TextLimits& limits) {
  return fmt::format("nests deeper than {} levels", limits.depth);
}

std::string too_long(const TextLimits& limits) {
  return fmt::format("has a text, number or gap of more than {} bytes", limits.token);
}

// A parser keeps a number several times over; none that is meant has more digits.
constexpr size_t kMostWord = 4096;

// Behind the quote that closes a string which begins before `at`; npos where none does.
size_t string_end(std::string_view text, size_t at) {
  for (;; at += 2) {
    at = text.find_first_of("\"\\", at);
    if (at == text.npos || text[at] == '"') return at == text.npos ? at : at + 1;
  }
}

// Walks over TOML as a parser does: what stands in strings and comments does not count. Brackets
// nest, and so does each dot of a key; a dot in a number does no harm.
class TomlScan {
 public:
  TomlScan(std::string_view text, const TextLimits& limits) : text_(text), limits_(limits) {}

  bool too_deep() {
    while (at_ < text_.size())
      if (step(text_[at_]); std::max(dots_, depth_) > limits_.depth) return true;
    return false;
  }

 private:
  void step(char c) {
    switch (c) {
      case '"':
      case '\'': return skip_string(c);
      case '#': at_ = std::min(text_.find('\n', at_), text_.size()); return;
      case '.': ++dots_; break;
      case '[':
      case '{': ++depth_, dots_ = 0; break;
      case ']':
      case '}': depth_ = std::max(depth_ - 1, 0), dots_ = 0; break;
      case '=':
      case ',':
      case '\n': dots_ = 0; break;
      default: break;
    }
    ++at_;
  }

  void skip_string(char quote) {
    const std::string_view three(quote == '"' ? "\"\"\"" : "'''");
    const bool long_one = text_.substr(at_).starts_with(three);
    const std::string_view end = long_one ? three : three.substr(2);
    for (at_ += end.size(); at_ < text_.size(); ++at_) {
      if (!long_one && text_[at_] == '\n') return;  // not closed: the parser stops here
      if (quote == '"' && text_[at_] == '\\') {
        ++at_;
      } else if (text_.substr(at_).starts_with(end)) {
        at_ += end.size();
        // A long string may end in two quotes of its own.
        for (int i = 0; long_one && i < 2 && at_ < text_.size() && text_[at_] == quote; ++i) ++at_;
        return;
      }
    }
  }

  std::string_view text_;
  const TextLimits& limits_;
  size_t at_ = 0;
  int depth_ = 0, dots_ = 0;
};

}  // namespace

std::string json_problem(std::string_view text, const TextLimits& limits) {
  if (std::string nul = has_nul(text); !nul.empty()) return nul;
  int depth = 0;
  size_t values = 1, parts = 0;
  size_t start = 0;  // of what is neither structure nor a string: a number, a word, blanks
  size_t word = 0;   // of what has no blanks either
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '"' || c == '[' || c == '{') && ++parts > limits.parts)
      return fmt::format("has more than {} texts, lists and objects", limits.parts);
    switch (c) {
      case '"':
        start = at;
        at = std::min(string_end(text, at + 1), text.size()) - 1;
        if (at - start >= limits.token) return too_long(limits);
        break;
      case '[':
      case '{':
        if (++depth > limits.depth) return too_deep(limits);
        break;
      case ']':
      case '}': --depth; break;
      case ',':
        if (++values > limits.values) return fmt::format("has more than {} values", limits.values);
        break;
      case ':': break;
      case ' ':
      case '\t':
      case '\r':
      case '\n':
        if (at - start >= limits.token) return too_long(limits);
        word = at + 1;
        continue;
      default:
        if (at - start >= limits.token) return too_long(limits);
        if (at - word >= kMostWord)
          return fmt::format("has a number or word of more than {} bytes", kMostWord);
        continue;
    }
    start = word = at + 1;
  }
  return "";
}

std::string toml_problem(std::string_view text, const TextLimits& limits) {
  if (std::string nul = has_nul(text); !nul.empty()) return nul;
  return TomlScan(text, limits).too_deep() ? too_deep(limits) : "";
}

}  // namespace vitrum
