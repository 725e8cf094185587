#include "vitrum/text/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, which stands for a blank
constexpr size_t kLongestPiece = 512;                // bytes; SentencePiece has 16 characters
constexpr size_t kLongestReplacement = 512;          // bytes for one character; NFKC has 33

std::string_view first_character(std::string_view text) {
  return text.substr(0, decode_utf8(text).bytes);
}

}  // namespace

// The number of units' bytes, the units, and the texts.
Charsmap::Charsmap(std::string_view bytes, const std::string& path) {
  if (bytes.empty()) return;
  uint32_t size = 0;
  if (bytes.size() >= sizeof(size)) std::memcpy(&size, bytes.data(), sizeof(size));
  const size_t room = bytes.size() < sizeof(size) ? 0 : bytes.size() - sizeof(size);
  if (size == 0 || size % sizeof(uint32_t) != 0 || size > room)
    fail_input("{}: the table of replaced characters has {} bytes, {} of them for its trie", path,
               bytes.size(), size);
  units_.resize(size / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof(size), size);
  texts_ = bytes.substr(sizeof(size) + size);
  if (!texts_.empty() && texts_.back() != '\0')
    fail_input("{}: the table of replaced characters ends inside a text", path);
  for (size_t at = 0, end; at < texts_.size(); at = end + 1)
    if (end = texts_.find('\0', at); end - at > kLongestReplacement)
      fail_input("{}: a character is replaced by {} bytes; {} are the most", path, end - at,
                 kLongestReplacement);
}

// A unit is a label (bits 0 to 7), whether a leaf belongs to it (8), and how far its children are
// (10 to 30, times 256 where bit 9 is set); a leaf has bit 31 set and holds a value.
Charsmap::Found Charsmap::find(std::string_view text) const {
  Found found;
  if (units_.empty()) return found;
  const auto children = [](uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); };
  uint32_t at = children(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (at >= units_.size() || (units_[at] & 0x800000FF) != byte) break;
    const uint32_t unit = units_[at];
    at ^= children(unit);
    if ((unit & 0x100) == 0) continue;
    const uint32_t value = at < units_.size() ? units_[at] & 0x7FFFFFFF : UINT32_MAX;
    if (value < texts_.size()) found = {i + 1, std::string_view(texts_.c_str() + value)};
  }
  return found;
}

Unigram::Unigram(UnigramTables tables, const std::string& path)
    : pieces_(std::move(tables.pieces)),
      charsmap_(tables.charsmap, path),
      dummy_prefix_(tables.dummy_prefix),
      remove_extra_spaces_(tables.remove_extra_spaces),
      end_(tables.end) {
  std::unordered_map<std::string_view, int32_t> all;
  best_ = -std::numeric_limits<float>::max(), worst_ = std::numeric_limits<float>::max();
  for (int32_t id = 0; id < size(); ++id) {
    const Piece& piece = pieces_[static_cast<size_t>(id)];
    if (piece.text.empty() || piece.text.size() > kLongestPiece)
      fail_input("{}: piece {} has {} bytes, expected 1 to {}", path, id, piece.text.size(),
                 kLongestPiece);
    if (!std::isfinite(piece.score))
      fail_input("{}: the score of piece {}, '{}', is not finite", path, id, shown(piece.text));
    if (!all.emplace(piece.text, id).second)
      fail_input("{}: the piece '{}' is there twice", path, shown(piece.text));
    if (piece.kind == PieceKind::kUnknown) unknown_ = id;
    if (piece.kind != PieceKind::kNormal && piece.kind != PieceKind::kUserDefined) continue;
    has_user_defined_ |= piece.kind == PieceKind::kUserDefined;
    numbers_.emplace(piece.text, id);
    longest_ = std::max(longest_, piece.text.size());
    if (piece.kind != PieceKind::kNormal) continue;
    best_ = std::max(best_, piece.score), worst_ = std::min(worst_, piece.score);
  }
  if (numbers_.empty() || unknown_ < 0)
    fail_input("{}: a vocabulary needs pieces, and one of them for what is unknown", path);
  if (const auto end = all.find("</s>"); end_ < 0 && end != all.end()) end_ = end->second;
  if (end_ < 0 || end_ >= size()) fail_input("{}: no piece is the mark of a text's end", path);
  for (int byte = 0; tables.bytes_of_unknown && byte < 256; ++byte) {
    const auto found = all.find(fmt::format("<0x{:02X}>", byte));
    if (found == all.end()) fail_input("{}: there is no piece for byte {:#04x}", path, byte);
    bytes_.push_back(found->second);
  }
}

std::string_view Unigram::user_defined(std::string_view text) const {
  if (!has_user_defined_) return {};
  for (size_t n = std::min(longest_, text.size()); n > 0; --n) {
    const auto found = numbers_.find(text.substr(0, n));
    if (found != numbers_.end() &&
        pieces_[static_cast<size_t>(found->second)].kind == PieceKind::kUserDefined)
      return text.substr(0, n);
  }
  return {};
}

// Characters by the table, blanks as kSpace; runs of them as one, and none at both ends.
std::string Unigram::normalized(std::string_view text) const {
  std::string out;
  bool after_space = remove_extra_spaces_;
  while (!text.empty()) {
    std::string_view part = user_defined(text);
    size_t used = part.size();
    if (used == 0) {
      const Charsmap::Found found = charsmap_.find(text);
      part = found.bytes > 0 ? found.replacement : first_character(text);
      used = found.bytes > 0 ? found.bytes : part.size();
    }
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    if (!part.empty()) after_space = remove_extra_spaces_ && part.ends_with(' ');
    for (const char c : part) c == ' ' ? out += kSpace : out += c;
    text.remove_prefix(used);
  }
  while (remove_extra_spaces_ && out.ends_with(kSpace)) out.resize(out.size() - kSpace.size());
  return dummy_prefix_ && !out.empty() ? std::string(kSpace) + out : out;
}

// Several characters in a row that no piece has are one unknown piece.
void Unigram::add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (!bytes_.empty())
    for (const char c : text) ids.push_back(bytes_[static_cast<unsigned char>(c)]);
  else if (ids.empty() || ids.back() != unknown_)
    ids.push_back(unknown_);
}

// Viterbi's way through the text, in the precision and with the ties of SentencePiece: the first
// way found stays where another is no better.
std::vector<int32_t> Unigram::encode(std::string_view given) const {
  struct Step {
    int32_t id = -1;  // -1: an unknown character
    size_t from = SIZE_MAX;
    float score = 0;
  };
  constexpr float kUnknownPenalty = 10;
  const std::string text = normalized(given);
  std::vector<Step> best(text.size() + 1);
  const auto offer = [&](size_t from, size_t to, int32_t id, float score) {
    const float sum = score + best[from].score;
    if (best[to].from == SIZE_MAX || sum > best[to].score) best[to] = {id, from, sum};
  };
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    const size_t character = first_character(rest).size();
    bool single = false;
    for (size_t n = 1; n <= std::min(longest_, rest.size()); ++n) {
      const auto found = numbers_.find(rest.substr(0, n));
      if (found == numbers_.end()) continue;
      const Piece& piece = pieces_[static_cast<size_t>(found->second)];
      offer(at, at + n, found->second,
            piece.kind == PieceKind::kUserDefined ? static_cast<float>(n) * best_ - 0.1f
                                                  : piece.score);
      single |= n == character;
    }
    if (!single) offer(at, at + character, -1, worst_ - kUnknownPenalty);
    at += character;
  }
  std::vector<Step> way;
  for (size_t at = text.size(); at > 0; at = best[at].from) way.push_back(best[at]);
  std::vector<int32_t> ids;
  size_t from = 0;
  for (size_t i = way.size(); i-- > 0;) {
    const size_t to = i > 0 ? way[i - 1].from : text.size();
    if (way[i].id >= 0)
      ids.push_back(way[i].id);
    else
      add_unknown(std::string_view(text).substr(from, to - from), ids);
    from = to;
  }
  return ids;
}

}  // namespace vitrum
