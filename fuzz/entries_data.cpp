#include <zlib.h>

#include "fuzz/support.h"
#include "vitrum/core/sha.h"
#include "vitrum/data/cifar.h"
#include "vitrum/data/folder.h"
#include "vitrum/data/idx.h"
#include "vitrum/data/shard_scan.h"
#include "vitrum/fetch/archive.h"
#include "vitrum/train/metrics_log.h"
#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/open_clip.h"

namespace vitrum::fuzz {
namespace {

// Every image and label is looked at.
void read_all(const Dataset& dataset) {
  Image image;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (dataset.label(i) < 0 || dataset.label(i) >= static_cast<int>(dataset.classes().size()))
      std::abort();
    dataset.read_into(i, image);
  }
}

// What a reader made of a shard or an index holds together.
void check_written_the_same(const ShardIndex& index) {
  if (!(parse_shard_index(to_text(index), "shards.index") == index)) std::abort();
}

std::string gzip(Input bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16, kFast = 1, kMemory = 8;
  deflateInit2(&stream, kFast, Z_DEFLATED, kGzip, kMemory, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

void config(Input bytes) {
  judge([&] { parse_model_config(std::string(text_of(bytes)), "config.json"); });
}

void hf_config(Input bytes) {
  const std::string_view text = text_of(bytes);
  const size_t end = text.find('\0');
  const std::string second(end == text.npos ? "{}" : text.substr(end + 1));
  judge([&] {
    const JsonKeys config(std::string(text.substr(0, end)), "config.json");
    if (is_hf_config(config)) parse_hf_config(config, {second, "preprocessor_config.json"});
  });
}

void open_clip_config(Input bytes) {
  const std::string text(text_of(bytes));
  judge([&] { parse_open_clip(JsonKeys(text, "open_clip_config.json")); });
  judge([&] { parse_open_clip_text(JsonKeys(text, "open_clip_config.json")); });
}

// A recipe that is read is written so that it is read the same.
void recipe(Input bytes) {
  const MemoryFile file(bytes);
  judge(
      [&] {
        Recipe read, again;
        load_recipe(read, file.path());
        const std::string text = to_toml(read);
        const MemoryFile written({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
        load_recipe(again, written.path());
        if (!(again == read)) std::abort();
        check_recipe(read);
      },
      ErrorKind::kUsage);
}

void metrics(Input bytes) {
  static const Folder folder;
  folder.put("metrics.csv", bytes);
  judge([&] { MetricsLog::load(folder.path()); });
}

void idx(Input bytes) {
  static const Folder folder;
  const std::string path = folder.put("idx", bytes);
  for (const int rank : {1, 3}) judge([&] { read_idx(path, rank); });
}

void cifar(Input bytes) {
  static const Folder folder;
  folder.put("test_batch.bin", bytes);
  judge([&] { read_all(*open_cifar(folder.path(), "test", 10)); });
}

void csv(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] {
    const auto dataset = open_csv(file.path(), csv_has_splits(file.path()) ? "train" : "");
    for (int64_t i = 0; i < dataset->size(); ++i)
      if (dataset->label(i) >= static_cast<int>(dataset->classes().size())) std::abort();
  });
}

void tar(Input bytes) {
  const Folder folder;
  const std::string packed = gzip(bytes);
  const std::string path =
      folder.put("a.tar.gz", {reinterpret_cast<const uint8_t*>(packed.data()), packed.size()});
  std::filesystem::create_directory(folder.path() + "/to");
  judge([&] { unpack_tar_gz(path, folder.path() + "/to", 1 << 20); });
  folder.put("a.tar", bytes);
  judge([&] { check_written_the_same(scan_shards(folder.path(), {"a.tar"})); });
}

void shards(Input bytes) {
  const std::string text(text_of(bytes));
  judge([&] {
    check_written_the_same(
        parse_shard_index(text + "sha256 " + sha256(text) + "\n", "shards.index"));
  });
}

}  // namespace vitrum::fuzz
