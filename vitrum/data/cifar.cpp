#include "vitrum/data/cifar.h"

#include <cctype>
#include <filesystem>
#include <sstream>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/memory_dataset.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPixelBytes = 3 * 32 * 32;

struct Variant {
  const char* folder;
  std::vector<std::string> train, test;
  const char* names;   // file of class names
  size_t label_bytes;  // the last one is the label
  int classes;
};

Variant variant_of(int classes) {
  if (classes == 100)
    return {"cifar-100-binary", {"train.bin"}, {"test.bin"}, "fine_label_names.txt", 2, 100};
  return {"cifar-10-batches-bin",
          {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
           "data_batch_5.bin"},
          {"test_batch.bin"},
          "batches.meta.txt",
          1,
          10};
}

std::vector<std::string> default_names(int classes) {
  if (classes == 10) {
    return {"airplane", "automobile", "bird",  "cat",  "deer",
            "dog",      "frog",       "horse", "ship", "truck"};
  }
  std::vector<std::string> names;
  for (int i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  return names;
}

std::vector<std::string> class_names(const fs::path& path, int classes) {
  constexpr size_t kMostBytes = 1 << 20;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return default_names(classes);
  std::istringstream file(read_file(path.string(), kMostBytes));
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (!is_utf8(line))
      fail_input("{}: the class '{}' is not UTF-8; save the file as UTF-8", path.string(),
                 shown(printable(line)));
    if (!line.empty()) names.push_back(line);
  }
  if (names.size() != static_cast<size_t>(classes)) {
    fail_input("{}: {} class names; expected {}", path.string(), names.size(), classes);
  }
  return names;
}

void append_records(const std::string& path, const Variant& variant, MemoryData& data) {
  const std::vector<uint8_t> bytes = read_bytes(path);
  const size_t record = variant.label_bytes + kPixelBytes;
  if (bytes.empty() || bytes.size() % record != 0) {
    fail_input(
        "{}: {} bytes are not a whole number of {}-byte records: the file is truncated or not "
        "CIFAR-{}",
        path, bytes.size(), record, variant.classes);
  }
  data.pixels.reserve(data.pixels.size() + bytes.size() / record * kPixelBytes);
  for (size_t at = 0; at < bytes.size(); at += record) {
    const uint8_t* const pixels = bytes.data() + at + variant.label_bytes;
    if (pixels[-1] >= variant.classes) {
      fail_input("{}: label {} of record {} is not below {}", path, pixels[-1], at / record,
                 variant.classes);
    }
    data.labels.push_back(pixels[-1]);
    data.pixels.insert(data.pixels.end(), pixels, pixels + kPixelBytes);
  }
}

}  // namespace

std::unique_ptr<Dataset> open_cifar(const std::string& dir, const std::string& split, int classes,
                                    const std::string& remedy) {
  const Variant variant = variant_of(classes);
  std::error_code ignored;
  const fs::path nested = fs::path(dir) / variant.folder;
  const fs::path folder = fs::is_directory(nested, ignored) ? nested : fs::path(dir);
  const auto& files = split == "train" ? variant.train : variant.test;
  if (!fs::exists(folder / files.front(), ignored)) {
    fail_input("{}: {} is neither there nor in a folder {}/{}", dir, files.front(), variant.folder,
               remedy);
  }
  MemoryData data{.split = split,
                  .image_size = {3, 32, 32},
                  .classes = class_names(folder / variant.names, classes),
                  .pixels = {},
                  .labels = {}};
  for (const std::string& file : files) append_records((folder / file).string(), variant, data);
  return std::make_unique<MemoryDataset>(std::move(data));
}

}  // namespace vitrum
