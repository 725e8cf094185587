// What the fuzzers call, and what the tests replay the corpus through: bytes of a file in, tensors
// or pixels out, or an Error. Anything else is a bug.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace vitrum::fuzz {

using Input = std::span<const uint8_t>;

void safetensors(Input bytes);
void index(Input bytes);    // beside one good shard, "one.safetensors"
void pickle(Input bytes);   // the data.pkl of a PyTorch file with a storage "0"
void pytorch(Input bytes);  // the whole file
void npz(Input bytes);
void jpeg(Input bytes);
void png(Input bytes);
void webp(Input bytes);

struct Entry {
  std::string_view name;  // of the target and of its folder in the corpus
  void (*run)(Input);
};
inline constexpr std::array kEntries = std::to_array<Entry>({{"safetensors", safetensors},
                                                             {"index", index},
                                                             {"pickle", pickle},
                                                             {"pytorch", pytorch},
                                                             {"npz", npz},
                                                             {"jpeg", jpeg},
                                                             {"png", png},
                                                             {"webp", webp}});

}  // namespace vitrum::fuzz
