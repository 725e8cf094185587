// dump_tokens DIR [CONTEXT]: the tokens of the texts on standard input, each ended by a zero byte,
// by DIR's tokenizer; a line each. With CONTEXT as a tower of so many tokens is given them. For
// tools/check/check_tokenizers.py to compare.
#include <fmt/core.h>

#include <iostream>
#include <iterator>

#include "vitrum/core/error.h"
#include "vitrum/text/tokenizer.h"

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) return 2;
  const auto tokenizer = vitrum::open_tokenizer(argv[1]);
  const int64_t context = argc == 3 ? std::stoll(argv[2]) : 0;
  const std::string all(std::istreambuf_iterator<char>(std::cin), {});
  for (size_t at = 0; at < all.size();) {
    const std::string text = all.substr(at, all.find('\0', at) - at);
    at += text.size() + 1;
    for (const int32_t id :
         context > 0 ? tokenizer->encode(text, context).ids : tokenizer->tokens(text))
      fmt::print("{} ", id);
    fmt::print("\n");
  }
  return 0;
} catch (const vitrum::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.kind());
}
