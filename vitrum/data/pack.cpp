#include "vitrum/data/pack.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/sha.h"
#include "vitrum/core/tar_header.h"
#include "vitrum/data/codecs.h"
#include "vitrum/data/encode_jpeg.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/data/shard_index.h"
#include "vitrum/data/shard_scan.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kImagesAShard = 2000, kMultiple = 64, kMostUneven = 32;

int64_t shard_count(int64_t images, const PackOptions& options) {
  if (options.shards > images)
    fail_usage("--shards {}: there are only {} images", options.shards, images);
  if (options.shards > 0) return options.shards;
  const int64_t n = ceil_div(images, kImagesAShard);
  return n <= kMostUneven ? n : round_up(n, kMultiple);
}

// By what the file holds, as decoding goes by that too.
std::string extension_of(std::span<const uint8_t> bytes, const std::string& name) {
  if (starts_with(bytes, "\xff\xd8")) return "jpg";
  if (starts_with(bytes, "\x89PNG")) return "png";
  if (starts_with(bytes, "RIFF")) return "webp";
  if (starts_with(bytes, "GIF8")) return "gif";
  if (starts_with(bytes, "BM")) return "bmp";
  if (is_tiff(bytes)) return "tif";
  const std::string extension = fs::path(name).extension().string();
  if (extension.size() > 1 && is_image_extension(extension.substr(1))) return extension.substr(1);
  fail_input("{}: not an image of a known kind; `vitrum data --check` lists all such files", name);
}

// "00000017_n01440764_18": unique by its number, and known again by what its file was called.
std::string key_of(int64_t number, const std::string& name) {
  constexpr size_t kMostBytes = 60;
  std::string stem = fs::path(name).stem().string();
  const size_t digits = stem.find_first_not_of("0123456789");
  if (digits == 8 && stem[digits] == '_') stem.erase(0, digits + 1);  // packed before
  std::ranges::replace_if(
      stem, [](unsigned char c) { return !(std::isalnum(c) || c == '-') || c > 0x7f; }, '_');
  return fmt::format("{:08}_{}", number, stem.substr(0, kMostBytes));
}

class SplitPacker {
 public:
  SplitPacker(const Dataset& data, const std::string& folder, const std::string& word,
              const PackOptions& options)
      : data_(data),
        folder_(folder),
        options_(options),
        shards_(shard_count(data.size(), options)) {
    index_.classes = data.classes();
    for (const std::string& name : index_.classes)
      if (!fits_a_line(name))
        fail_input("the class '{}' holds a control character; rename it", name);
    for (int64_t i = 0; i < shards_; ++i)
      index_.shards.push_back({.name = fmt::format("{}-{:06}.tar", word, i)});
    index_.samples.resize(static_cast<size_t>(data.size()));
  }

  PackedSplit run() {
    ThreadPool pool(options_.threads > 0 ? options_.threads : available_cores());
    std::exception_ptr failure;
    std::mutex failing;
    pool.run(shards_, [&](int64_t shard, int thread) {
      try {
        if (!stopped_) write_shard(shard, thread == 0);
      } catch (...) {
        const std::scoped_lock lock(failing);
        if (!failure) failure = std::current_exception();
        stopped_ = true;
      }
    });
    if (failure) std::rethrow_exception(failure);
    return stopped_ ? PackedSplit{} : finish();
  }

 private:
  void write_shard(int64_t shard, bool reports) {
    ShardFile& file = index_.shards[static_cast<size_t>(shard)];
    const std::string path = folder_ + "/" + file.name;
    {
      AtomicFile out(path);
      const auto add = [&](const std::string& name, std::string_view bytes) {
        const auto size = static_cast<int64_t>(bytes.size());
        const TarHeader header = tar_header(name, size);
        out.write(std::string_view(header.bytes.data(), header.bytes.size()));
        out.write(bytes);
        out.write(std::string(static_cast<size_t>(tar_padding(size)), '\0'));
        const int64_t at = file.size + kTarBlock;
        file.size = at + size + tar_padding(size);
        return at;
      };
      for (int64_t n = shard; n < data_.size(); n += shards_) {
        if (stopped_ = stopped_ || options_.stop(); stopped_) return;
        add_sample(n, shard, add);
        ++done_;
        if (reports && options_.progress) options_.progress(done_);
      }
      out.write(std::string(2 * kTarBlock, '\0'));
      file.size += 2 * kTarBlock;
      out.commit();
    }
    const MappedFile written(path);
    const std::span<const std::byte> bytes = written.bytes();
    file.sha256 = sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    written.check_intact();
  }

  template <class Add>
  void add_sample(int64_t n, int64_t shard, const Add& add) {
    std::vector<uint8_t> bytes = options_.size > 0 ? smaller(n) : data_.file(n);
    const std::string key = key_of(n, data_.name(n));
    const std::string name = key + "." + extension_of(bytes, data_.name(n));
    const int64_t at = add(name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    add(key + ".cls", std::to_string(data_.label(n)));
    index_.samples[static_cast<size_t>(n)] = {.shard = static_cast<int32_t>(shard),
                                              .label = data_.label(n),
                                              .at = at,
                                              .size = static_cast<int64_t>(bytes.size()),
                                              .name = name};
  }

  std::vector<uint8_t> smaller(int64_t n) const {
    const Image image = data_.read(n);
    if (std::min(image.height, image.width) <= options_.size)
      return encode_jpeg(image, options_.quality);
    const auto [height, width] = resize_target(
        {.height = options_.size, .width = options_.size, .crop_mode = CropMode::kCenter},
        image.height, image.width);
    return encode_jpeg(
        resize(image, static_cast<int>(height), static_cast<int>(width), Filter::kBicubic),
        options_.quality);
  }

  PackedSplit finish() {
    std::string classes;
    for (const std::string& name : index_.classes) classes += name + "\n";
    write_file_atomic(folder_ + "/classes.txt", classes);
    const std::string text = to_text(index_);
    write_file_atomic(folder_ + "/" + kShardIndexName, text);
    PackedSplit packed{.images = data_.size(), .shards = shards_, .digest = sha256(text)};
    for (const ShardFile& shard : index_.shards) packed.bytes += shard.size;
    return packed;
  }

  const Dataset& data_;
  const std::string& folder_;
  const PackOptions& options_;
  const int64_t shards_;
  ShardIndex index_;
  std::atomic<bool> stopped_ = false;
  std::atomic<int64_t> done_ = 0;
};

}  // namespace

PackedSplit pack_split(const Dataset& data, const std::string& folder, const std::string& word,
                       const PackOptions& options) {
  return SplitPacker(data, folder, word, options).run();
}

}  // namespace vitrum
