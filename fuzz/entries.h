// What the fuzzers call, and what the tests replay the corpus through: bytes of a file in, tensors,
// pixels or settings out, or an Error. Anything else is a bug.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace vitrum::fuzz {

using Input = std::span<const uint8_t>;

// Weights.
void safetensors(Input bytes);
void index(Input bytes);    // beside one good shard, "one.safetensors"
void pickle(Input bytes);   // the data.pkl of a PyTorch file with a storage "0"
void pytorch(Input bytes);  // the whole file
void npz(Input bytes);
void npy(Input bytes);

// Images.
void jpeg(Input bytes);
void png(Input bytes);       // whose checksums are mended first
void png_rows(Input bytes);  // kind, width and height, then rows that are compressed first
void webp(Input bytes);
void gif(Input bytes);
void bmp(Input bytes);
void tiff(Input bytes);  // where libtiff is
void heif(Input bytes);  // where libheif is

// Settings and what a run wrote.
void config(Input bytes);     // config.json in timm's layout or ours
void hf_config(Input bytes);  // transformers': config.json, a zero byte, preprocessor_config.json
void open_clip_config(Input bytes);  // of both towers
void recipe(Input bytes);            // TOML
void metrics(Input bytes);           // metrics.csv

// Tokenizers.
void tokenizer_json(Input bytes);  // tokenizer.json, a zero byte, tokenizer_config.json
void spiece(Input bytes);          // SentencePiece's model

// Data sets.
void idx(Input bytes);
void cifar(Input bytes);  // test_batch.bin
void csv(Input bytes);
void tar(Input bytes);     // a shard of images; and, compressed first, a download
void shards(Input bytes);  // the index of shards, without its digest

// What a client sends.
void http_session(Input bytes);  // on a connection that it then closes
void multipart(Input bytes);     // a line with the boundary, then the body
void oip(Input bytes);           // the JSON, a zero byte, what is behind it

struct Entry {
  std::string_view name;  // of the target, its folder in the corpus and its dictionary
  void (*run)(Input);
};
inline constexpr std::array kEntries = std::to_array<Entry>({{"safetensors", safetensors},
                                                             {"index", index},
                                                             {"pickle", pickle},
                                                             {"pytorch", pytorch},
                                                             {"npz", npz},
                                                             {"npy", npy},
                                                             {"jpeg", jpeg},
                                                             {"png", png},
                                                             {"png_rows", png_rows},
                                                             {"webp", webp},
                                                             {"gif", gif},
                                                             {"bmp", bmp},
                                                             {"tiff", tiff},
                                                             {"heif", heif},
                                                             {"config", config},
                                                             {"hf_config", hf_config},
                                                             {"open_clip_config", open_clip_config},
                                                             {"recipe", recipe},
                                                             {"metrics", metrics},
                                                             {"tokenizer_json", tokenizer_json},
                                                             {"spiece", spiece},
                                                             {"idx", idx},
                                                             {"cifar", cifar},
                                                             {"csv", csv},
                                                             {"tar", tar},
                                                             {"shards", shards},
                                                             {"http_session", http_session},
                                                             {"multipart", multipart},
                                                             {"oip", oip}});

}  // namespace vitrum::fuzz
