#include "vitrum/text/unicode.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <vector>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

struct CodeRange {
  char32_t first, last;
  int32_t value = 0;  // what is added for lower case; the combining class
  char32_t step = 1;
};

// The ranges of a table are in order, and none reaches into another.
const CodeRange* find(const std::vector<CodeRange>& ranges, char32_t c) {
  auto at = std::upper_bound(ranges.begin(), ranges.end(), c,
                             [](char32_t x, const CodeRange& r) { return x < r.first; });
  if (at == ranges.begin()) return nullptr;
  --at;
  return c <= at->last && (c - at->first) % at->step == 0 ? &*at : nullptr;
}

struct Tables {
  std::vector<CodeRange> letters, numbers, lower, classes;
  std::map<char32_t, std::u32string> parts;  // of one code point, one step
  std::map<std::pair<char32_t, char32_t>, char32_t> whole;

  Tables() {
    for (std::string_view rest = kUnicodeTable; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      for (size_t at = 2; at < line.size();) {
        const size_t end = std::min(line.find(' ', at), line.size());
        add(line[0], line.substr(at, end - at));
        at = end + 1;
      }
    }
  }

  static char32_t number(std::string_view& text) {
    uint32_t n = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), n, 16).ptr;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return n;
  }
  static bool take(std::string_view& text, char c) {
    if (!text.starts_with(c)) return false;
    text.remove_prefix(1);
    return true;
  }

  void add(char kind, std::string_view text) {
    if (kind == 'D') return add_parts(text);
    CodeRange range{number(text), 0};
    range.last = take(text, '-') ? number(text) : range.first;
    if (take(text, '/')) range.step = number(text);
    if (take(text, '+') || take(text, '=')) range.value = static_cast<int32_t>(number(text));
    if (take(text, '-')) range.value = -static_cast<int32_t>(number(text));
    (kind == 'L'   ? letters
     : kind == 'N' ? numbers
     : kind == 'W' ? lower
                   : classes)
        .push_back(range);
  }
  void add_parts(std::string_view text) {
    const char32_t c = number(text);
    const bool composes = take(text, '=');
    if (!composes) take(text, '~');
    std::u32string& all = parts[c];
    do all += number(text);
    while (take(text, '+'));
    if (composes && all.size() == 2) whole[{all[0], all[1]}] = c;
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

int combining_class(char32_t c) {
  const CodeRange* range = c < 0x300 ? nullptr : find(tables().classes, c);
  return range ? range->value : 0;
}

// Hangul syllables are computed: leading consonant, vowel, trailing consonant or none.
constexpr char32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kLeadings = 19, kVowels = 21, kTrailings = 28;

void append_parts(std::u32string& to, char32_t c) {
  if (c >= kSyllable && c < kSyllable + kLeadings * kVowels * kTrailings) {
    const char32_t s = c - kSyllable;
    to += kLeading + s / (kVowels * kTrailings);
    to += kVowel + s % (kVowels * kTrailings) / kTrailings;
    if (s % kTrailings != 0) to += kTrailing + s % kTrailings;
    return;
  }
  const auto found = tables().parts.find(c);
  if (found == tables().parts.end()) {
    to += c;
    return;
  }
  for (const char32_t part : found->second) append_parts(to, part);
}

// The one code point for two, or 0.
char32_t together(char32_t a, char32_t b) {
  if (a >= kLeading && a < kLeading + kLeadings && b >= kVowel && b < kVowel + kVowels)
    return kSyllable + ((a - kLeading) * kVowels + b - kVowel) * kTrailings;
  const bool open = a >= kSyllable && a < kSyllable + kLeadings * kVowels * kTrailings &&
                    (a - kSyllable) % kTrailings == 0;
  if (open && b > kTrailing && b < kTrailing + kTrailings) return a + b - kTrailing;
  const auto found = tables().whole.find({a, b});
  return found == tables().whole.end() ? 0 : found->second;
}

// Marks behind a letter, in the order of their classes.
void sort_marks(std::u32string& text) {
  for (size_t first = 0; first < text.size();) {
    size_t last = first;
    while (last < text.size() && combining_class(text[last]) != 0) ++last;
    std::stable_sort(
        text.begin() + static_cast<ptrdiff_t>(first), text.begin() + static_cast<ptrdiff_t>(last),
        [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    first = last + 1;
  }
}

// Every mark that nothing of its class or a higher one stands before goes into its letter.
std::u32string compose(const std::u32string& text) {
  std::u32string out;
  size_t letter = std::u32string::npos;  // where the last one is
  int before = 0;                        // the class of what was kept behind it
  for (const char32_t c : text) {
    const int own = combining_class(c);
    const bool open = letter != out.npos && (letter + 1 == out.size() || before < own);
    if (const char32_t one = open ? together(out[letter], c) : 0; one != 0) {
      out[letter] = one;
      continue;
    }
    if (own == 0) letter = out.size();
    before = own;
    out += c;
  }
  return out;
}

template <class Use>
void each_code_point(std::string_view text, const Use& use) {
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) use((c = decode_utf8(text)).value);
}

}  // namespace

bool is_letter(char32_t c) { return find(tables().letters, c) != nullptr; }
bool is_number(char32_t c) { return find(tables().numbers, c) != nullptr; }
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

void append_utf8(std::string& text, char32_t c) {
  const auto byte = [&](char32_t bits) { text += static_cast<char>(bits); };
  const auto rest = [&](int shift) { byte(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    byte(c);
  } else if (c < 0x800) {
    byte(0xC0 | c >> 6), rest(0);
  } else if (c < 0x10000) {
    byte(0xE0 | c >> 12), rest(6), rest(0);
  } else {
    byte(0xF0 | c >> 18), rest(12), rest(6), rest(0);
  }
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kDottedI = 0x130, kDot = 0x307;  // the one that becomes two
  std::string out;
  each_code_point(text, [&](char32_t c) {
    const CodeRange* range = find(tables().lower, c);
    if (c == kDottedI)
      append_utf8(out, 'i'), append_utf8(out, kDot);
    else
      append_utf8(out, range ? static_cast<char32_t>(static_cast<int32_t>(c) + range->value) : c);
  });
  return out;
}

std::string composed(std::string_view text) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<signed char>(c) >= 0; });
  if (ascii) return std::string(text);
  std::u32string parts;
  each_code_point(text, [&](char32_t c) { append_parts(parts, c); });
  sort_marks(parts);
  std::string out;
  for (const char32_t c : compose(parts)) append_utf8(out, c);
  return out;
}

std::string single_spaced(std::string_view text, bool strip) {
  std::string out;
  bool after_space = false;
  each_code_point(text, [&](char32_t c) {
    const bool space = is_space(c);
    if (!space)
      append_utf8(out, c);
    else if (!after_space && !(strip && out.empty()))
      out += ' ';
    after_space = space;
  });
  if (strip && out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace vitrum
