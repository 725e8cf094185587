// Byte-pair encoding: the symbols of a word, merged in the order in which a training merged them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vitrum {

struct BpeTables {
  std::vector<std::pair<std::string, int32_t>> words;       // and their numbers
  std::vector<std::pair<std::string, std::string>> merges;  // the first one first
  std::string unknown;            // the word for what has none; "": that is left out
  std::string end_of_word;        // what the last symbol of a word has behind it, "</w>"
  bool bytes_of_unknown = false;  // a character without a word becomes <0x41>, one a byte
  bool one_unknown = false;       // of several in a row
};

class Bpe {
 public:
  // Fails naming `path` where a merge is of words that are not there, or a number is used twice.
  Bpe(const BpeTables& tables, const std::string& path);

  // The numbers of a word's symbols, merged, behind `ids`.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t find(std::string_view word) const;  // -1: there is none
  int32_t size() const { return size_; }      // one more than the largest number

 private:
  struct Merge {
    int32_t rank, whole;
  };
  void add_symbol(std::string_view symbol, bool last, std::vector<int32_t>& ids) const;
  static uint64_t pair(int32_t a, int32_t b) {
    return uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
  }

  std::unordered_map<std::string, int32_t> words_;
  std::unordered_map<uint64_t, Merge> merges_;
  std::string end_of_word_;
  int32_t unknown_ = -1, size_ = 0;
  std::vector<int32_t> bytes_;  // by byte, where those of unknown characters are used
  bool one_unknown_ = false;
};

}  // namespace vitrum
