// tokenizer_config.json; internal to text/.
#pragma once
#include "vitrum/text/tokenizer.h"

namespace vitrum {

struct TokenizerConfig {
  bool lower = true;                          // do_lower_case
  bool begin_mark = false, end_mark = false;  // add_bos_token, add_eos_token
  bool says_marks = false;                    // one of them is stated
  std::string padding_side = {};              // "left", "right" or "": not stated
};
TokenizerConfig read_tokenizer_config(const TokenizerText& config);  // an empty text states nothing

}  // namespace vitrum
