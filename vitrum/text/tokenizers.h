// The tokenizers that there are; internal to text/.
#pragma once
#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "vitrum/text/bpe.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/text/unigram.h"

namespace vitrum {

// Words that are found in a text before anything else is done to it: "<|endoftext|>".
class AddedWords {
 public:
  void add(std::string word, int32_t id, const std::string& path);
  // Calls part(text) for what is between them, and word(id) for each, the longest one first.
  template <class Part, class Word>
  void split(std::string_view text, const Part& part, const Word& word) const {
    size_t from = 0;
    for (size_t at = 0; at < text.size() && !words_.empty();) {
      const auto [id, bytes] = find(text.substr(at));
      if (bytes == 0) {
        ++at;
        continue;
      }
      if (at > from) part(text.substr(from, at - from));
      word(id);
      from = at += bytes;
    }
    if (from < text.size()) part(text.substr(from));
  }
  int32_t size() const { return size_; }  // one more than the largest number

 private:
  struct Found {
    int32_t id = 0;
    size_t bytes = 0;
  };
  Found find(std::string_view text) const;

  std::unordered_map<std::string, int32_t> words_;
  std::vector<size_t> lengths_;  // that there are, the longest first
  int32_t size_ = 0;
};

struct AddedTables {
  AddedWords raw, normalized;  // looked for in the text as it is, and as it is then written
  int32_t size() const { return std::max(raw.size(), normalized.size()); }
};

// CLIP's: form C, white space to blanks, lower case; letters, single digits and other signs apart;
// bytes as characters.
class ClipTokenizer final : public Tokenizer {
 public:
  ClipTokenizer(const BpeTables& tables, AddedTables added, const std::string& path);
  std::vector<int32_t> tokens(std::string_view text) const override;
  int64_t vocabulary() const override { return std::max(bpe_.size(), added_.size()); }

 private:
  void add_words(std::string_view text, std::vector<int32_t>& ids) const;
  Bpe bpe_;
  AddedTables added_;
};

// SigLIP's: lower case, no ASCII punctuation, single blanks; then SentencePiece.
class SiglipTokenizer final : public Tokenizer {
 public:
  SiglipTokenizer(UnigramTables tables, bool lower, const std::string& path);
  std::vector<int32_t> tokens(std::string_view text) const override;
  int64_t vocabulary() const override { return unigram_.size(); }

 private:
  Unigram unigram_;
  bool lower_;
};

// Gemma's, as SigLIP 2 has it: lower case, blanks as U+2581, the whole text as one word.
class GemmaTokenizer final : public Tokenizer {
 public:
  GemmaTokenizer(const BpeTables& tables, AddedTables added, Framing framing,
                 const std::string& path);
  std::vector<int32_t> tokens(std::string_view text) const override;
  int64_t vocabulary() const override { return std::max(bpe_.size(), added_.size()); }

 private:
  Bpe bpe_;
  AddedTables added_;
};

}  // namespace vitrum
