// From words to the numbers that a text tower reads, by the tokenizer files of a model directory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum {

// A text as the model is given it.
struct TokenRow {
  std::vector<int32_t> ids;  // as many as the model takes
  int64_t end = 0;           // where the first mark of the end is
};

// What stands around a text's tokens.
struct Framing {
  std::vector<int32_t> before, after;
  int32_t end = 0, pad = 0;
  bool pad_left = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Framed, and cut or padded to `context` tokens. Fails where the text is not UTF-8, or longer
  // than any that is meant.
  TokenRow encode(std::string_view text, int64_t context) const;
  // The tokens of the text alone.
  virtual std::vector<int32_t> tokens(std::string_view text) const = 0;
  virtual int64_t vocabulary() const = 0;  // one more than the largest number
  const Framing& framing() const { return framing_; }

 protected:
  Framing framing_;
};

// As big_vision writes texts before SigLIP reads them: lower case, underscores as blanks, no ASCII
// punctuation, single blanks.
std::string canonical(std::string_view text);

// By the files of a model directory: spiece.model, tokenizer.json, or vocab.json and merges.txt.
// Nothing in them is trusted; what is wrong is an error that names the file.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model_dir);
// The files of open_tokenizer() that are there, by path.
std::vector<std::string> tokenizer_files(const std::string& model_dir);

// Of one file each; `path` is for messages.
struct TokenizerText {
  std::string text, path;
};
std::unique_ptr<Tokenizer> parse_tokenizer_json(const TokenizerText& json,
                                                const TokenizerText& config);
std::unique_ptr<Tokenizer> parse_vocabulary(const TokenizerText& vocabulary,
                                            const TokenizerText& merges);
std::unique_ptr<Tokenizer> parse_sentencepiece(const TokenizerText& model,
                                               const TokenizerText& config);

}  // namespace vitrum
