#include "vitrum/text/tokenizers.h"

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/text/unicode.h"

namespace vitrum {
namespace {

constexpr size_t kLongestAdded = 512;  // bytes
constexpr size_t kLongestText = 64 << 10;

// GPT-2's characters for bytes: those that can be seen stand for themselves, the others are counted
// from U+0100 on.
const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> all = [] {
    std::array<std::string, 256> made;
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool seen = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      append_utf8(made[b], seen ? b : next++);
    }
    return made;
  }();
  return all;
}

enum class Sign { kLetter, kNumber, kSpace, kOther };
Sign sign_of(char32_t c) {
  if (is_space(c)) return Sign::kSpace;
  if (is_letter(c)) return Sign::kLetter;
  return is_number(c) ? Sign::kNumber : Sign::kOther;
}

// The bytes of the word that the text begins with, in the order of CLIP's expression: marks,
// English endings, letters, one digit, other signs. A blank is no word: 0.
size_t clip_word(std::string_view text) {
  constexpr std::string_view kWhole[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
  for (const std::string_view whole : kWhole)
    if (text.starts_with(whole)) return whole.size();
  const CodePoint first = decode_utf8(text);
  const Sign sign = sign_of(first.value);
  if (sign == Sign::kSpace) return 0;
  size_t bytes = first.bytes;
  while (sign != Sign::kNumber && bytes < text.size()) {
    const CodePoint c = decode_utf8(text.substr(bytes));
    if (sign_of(c.value) != sign) break;
    bytes += c.bytes;
  }
  return bytes;
}

}  // namespace

TokenRow Tokenizer::encode(std::string_view text, int64_t context) const {
  if (!is_utf8(text)) fail_input("the text '{}' is not UTF-8", shown(text));
  if (text.size() > kLongestText)
    fail_input("a text of {} bytes is longer than any that is meant; {} are the most", text.size(),
               kLongestText);
  const Framing& f = framing_;
  const auto room = context - static_cast<int64_t>(f.before.size() + f.after.size());
  if (room < 0) fail_input("a text tower of {} tokens has no room for a text", context);
  std::vector<int32_t> ids = tokens(text);
  ids.resize(std::min(ids.size(), static_cast<size_t>(room)));
  ids.insert(ids.begin(), f.before.begin(), f.before.end());
  ids.insert(ids.end(), f.after.begin(), f.after.end());
  const size_t missing = static_cast<size_t>(context) - ids.size();
  ids.insert(f.pad_left ? ids.begin() : ids.end(), missing, f.pad);
  const auto end = std::find(ids.begin(), ids.end(), f.end);
  const int64_t at = end == ids.end() ? context - 1 : end - ids.begin();
  return {std::move(ids), at};
}

// ---- words that are found first ----

void AddedWords::add(std::string word, int32_t id, const std::string& path) {
  const size_t bytes = word.size();
  if (bytes == 0 || bytes > kLongestAdded)
    fail_input("{}: an added token of {} bytes, expected 1 to {}", path, bytes, kLongestAdded);
  words_.insert_or_assign(std::move(word), id);
  size_ = std::max(size_, id + 1);
  const auto at = std::lower_bound(lengths_.begin(), lengths_.end(), bytes, std::greater<>());
  if (at == lengths_.end() || *at != bytes) lengths_.insert(at, bytes);
}

AddedWords::Found AddedWords::find(std::string_view text) const {
  for (const size_t bytes : lengths_) {
    if (bytes > text.size()) continue;
    const auto found = words_.find(std::string(text.substr(0, bytes)));
    if (found != words_.end()) return {found->second, bytes};
  }
  return {};
}

// ---- CLIP ----

ClipTokenizer::ClipTokenizer(const BpeTables& tables, AddedTables added, const std::string& path)
    : bpe_(tables, path), added_(std::move(added)) {
  const int32_t start = bpe_.find("<|startoftext|>"), end = bpe_.find("<|endoftext|>");
  if (start < 0 || end < 0)
    fail_input("{}: '<|startoftext|>' and '<|endoftext|>' must be words of the vocabulary", path);
  framing_ = {.before = {start}, .after = {end}, .end = end, .pad = end};
}

void ClipTokenizer::add_words(std::string_view text, std::vector<int32_t>& ids) const {
  while (!text.empty()) {
    const size_t bytes = clip_word(text);
    std::string word;
    for (const char c : text.substr(0, bytes))
      word += byte_characters()[static_cast<unsigned char>(c)];
    if (bytes > 0) bpe_.encode(word, ids);
    text.remove_prefix(bytes > 0 ? bytes : decode_utf8(text).bytes);
  }
}

std::vector<int32_t> ClipTokenizer::tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto word = [&](int32_t id) { ids.push_back(id); };
  added_.raw.split(
      text,
      [&](std::string_view part) {
        const std::string written = lower_case(single_spaced(composed(part), /*strip=*/false));
        added_.normalized.split(
            written, [&](std::string_view p) { add_words(p, ids); }, word);
      },
      word);
  return ids;
}

// ---- SigLIP ----

SiglipTokenizer::SiglipTokenizer(UnigramTables tables, bool lower, const std::string& path)
    : unigram_(std::move(tables), path), lower_(lower) {
  const int32_t end = unigram_.end();
  framing_ = {.before = {}, .after = {end}, .end = end, .pad = end};
}

// Without ASCII punctuation, and with single blanks.
static std::string without_punctuation(std::string plain) {
  std::erase_if(plain, [](char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  });
  // Python's white space has four separators more than Unicode's.
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return c >= 0x1C && c <= 0x1F; }, ' ');
  return single_spaced(plain, /*strip=*/true);
}

std::string canonical(std::string_view text) {
  std::string plain(text);
  std::ranges::replace(plain, '_', ' ');
  return lower_case(without_punctuation(std::move(plain)));
}

std::vector<int32_t> SiglipTokenizer::tokens(std::string_view text) const {
  constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581: pieces have it for a blank
  std::string plain = lower_ ? lower_case(text) : std::string(text);
  for (size_t at = 0; (at = plain.find(kSpace, at)) != plain.npos;)
    plain.replace(at, kSpace.size(), 1, ' ');
  return unigram_.encode(without_punctuation(std::move(plain)));
}

// ---- SigLIP 2 ----

GemmaTokenizer::GemmaTokenizer(const BpeTables& tables, AddedTables added, Framing framing,
                               const std::string& path)
    : bpe_(tables, path), added_(std::move(added)) {
  framing_ = std::move(framing);
}

std::vector<int32_t> GemmaTokenizer::tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto word = [&](int32_t id) { ids.push_back(id); };
  added_.raw.split(
      text,
      [&](std::string_view part) {
        std::string written;
        for (const char c : lower_case(part)) c == ' ' ? written += "\xE2\x96\x81" : written += c;
        added_.normalized.split(
            written, [&](std::string_view p) { bpe_.encode(p, ids); }, word);
      },
      word);
  return ids;
}

}  // namespace vitrum
