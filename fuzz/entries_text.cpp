#include "fuzz/entries.h"
#include "fuzz/support.h"
#include "vitrum/text/tokenizer.h"

namespace vitrum::fuzz {
namespace {

constexpr int64_t kContext = 16;

// Whatever a file says, every number that comes out of it is one of its vocabulary.
void encode_all(const Tokenizer& tokenizer) {
  for (const std::string_view text : {"", "a cat", "It's 12 o'clock, <|endoftext|>",
                                      "\u00c9t\u00e9 \u1e9b\u0323 \uac01 \u2581x"}) {
    const TokenRow row = tokenizer.encode(text, kContext);
    if (row.ids.size() != kContext || row.end < 0 || row.end >= kContext) std::abort();
    for (const int32_t id : row.ids)
      if (id < 0 || id >= tokenizer.vocabulary()) std::abort();
  }
}

}  // namespace

void tokenizer_json(Input bytes) {
  const std::string_view text = text_of(bytes);
  const size_t end = text.find('\0');
  const std::string second(end == text.npos ? "" : text.substr(end + 1));
  judge([&] {
    encode_all(*parse_tokenizer_json({std::string(text.substr(0, end)), "tokenizer.json"},
                                     {second, "tokenizer_config.json"}));
  });
}

void spiece(Input bytes) {
  judge([&] {
    encode_all(*parse_sentencepiece({std::string(text_of(bytes)), "spiece.model"}, {"", ""}));
  });
}

}  // namespace vitrum::fuzz
