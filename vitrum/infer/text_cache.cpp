#include "vitrum/infer/text_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/cache_directory.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/text_tower.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr int kForm = 1;           // raised where the same texts would give other vectors
constexpr size_t kMostFiles = 64;  // of the cache; the oldest goes first

// Lengths keep "ab", "c" from being "a", "bc".
std::string digest_of(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& text : texts) all += fmt::format("{}:{}", text.size(), text);
  return sha256(all);
}

void remove_oldest(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".npy") files.emplace_back(entry.last_write_time(), entry);
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + kMostFiles < files.size(); ++i) fs::remove(files[i].second);
}

}  // namespace

TextCache::TextCache(const std::string& model, const std::string& backend, DType compute,
                     std::span<const std::string> texts) {
  const std::string root = cache_directory();
  if (root.empty()) return;
  // "cpu (avx512, 4 threads)": their number changes no bits.
  const std::string device = backend.substr(0, backend.rfind(", "));
  std::string key = fmt::format("{} {} {} {} {}", kForm, text_digest(model), device,
                                name_of(compute), digest_of(texts));
  for (const std::string& file : tokenizer_files(model)) key += " " + sha256(read_file(file));
  path_ = (fs::path(root) / "texts" / (sha256(key) + ".npy")).string();
}

std::vector<float> TextCache::read(size_t numbers) const try {
  if (path_.empty() || !fs::exists(path_)) return {};
  NpyArray array = read_npy(path_);
  if (array.values.size() != numbers || !all_finite(array.values)) return {};
  return std::move(array.values);
} catch (const std::exception&) {
  return {};  // it is computed again
}

void TextCache::write(std::span<const float> vectors, size_t texts) const try {
  if (path_.empty() || texts == 0) return;
  const fs::path folder = fs::path(path_).parent_path();
  ensure_directory(folder.string());
  const auto rows = static_cast<int64_t>(texts);
  write_npy(path_, {rows, static_cast<int64_t>(vectors.size()) / rows}, vectors);
  remove_oldest(folder);
} catch (const std::exception&) {  // a full disk costs the next run time, and this one nothing
}

}  // namespace vitrum
