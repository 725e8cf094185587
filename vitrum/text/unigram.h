// SentencePiece's unigram model: of all ways to cut a text into pieces the most probable one.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace vitrum {

enum class PieceKind : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct Piece {
  std::string text;
  float score = 0;  // log-probability
  PieceKind kind = PieceKind::kNormal;
};

struct UnigramTables {
  std::vector<Piece> pieces;  // by number
  std::string charsmap;       // how characters are written before: see Charsmap; may be empty
  bool dummy_prefix = true;   // a blank before the text
  bool remove_extra_spaces = true;
  bool bytes_of_unknown = false;
  int32_t end = -1;  // the mark of a text's end; -1: the piece "</s>"
};

// SentencePiece's table of replacements: a double-array trie (of the form of darts-clone) over what
// is replaced, and the texts that take its place.
class Charsmap {
 public:
  Charsmap() = default;
  Charsmap(std::string_view bytes, const std::string& path);

  // What takes the place of the longest beginning of `text` that has an entry; 0 bytes: none has.
  struct Found {
    size_t bytes = 0;
    std::string_view replacement = {};
  };
  Found find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string texts_;  // each ended by a zero
};

class Unigram {
 public:
  Unigram(UnigramTables tables, const std::string& path);

  std::vector<int32_t> encode(std::string_view text) const;
  int32_t end() const { return end_; }
  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }

 private:
  std::string normalized(std::string_view text) const;
  std::string_view user_defined(std::string_view text) const;  // at its beginning, or ""
  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<Piece> pieces_;
  std::unordered_map<std::string_view, int32_t> numbers_;  // of those that a text may be cut into
  std::vector<int32_t> bytes_;                             // by byte; empty where they are not used
  Charsmap charsmap_;
  bool dummy_prefix_, remove_extra_spaces_, has_user_defined_ = false;
  size_t longest_ = 0;
  float best_ = 0, worst_ = 0;  // scores of normal pieces
  int32_t unknown_ = -1, end_ = -1;
};

}  // namespace vitrum
