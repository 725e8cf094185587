#include "vitrum/infer/resident_images.h"

#include <fmt/format.h>

#include <algorithm>

namespace vitrum {
namespace {

// CIFAR has 0.15 GB. A card has room for more, but data sets of this size are folders of photos,
// and what a training may leave over is not known before it runs.
constexpr int64_t kMostBytes = int64_t{2} << 30;
// At a time: an upload is staged in pinned memory, which is kept.
constexpr int64_t kUploadBytes = 4 << 20;

int64_t image_bytes(const Preprocess& p) {
  return int64_t{p.channels} * int64_t{p.height} * int64_t{p.width};
}

}  // namespace

std::string why_not_resident(const Dataset& data, const LoaderConfig& config) {
  if (data.image_size().height == 0) return "the images are files, decoded when they are needed";
  if (!runs_on_device(config.augment))
    return "the host augments the images: only crops without resizing, flips and erasing are done "
           "on "
           "the device";
  if (data.size() > kMostBytes / image_bytes(config.preprocess))
    return fmt::format("{} images of {} bytes are more than {} GiB", data.size(),
                       image_bytes(config.preprocess), kMostBytes >> 30);
  return "";
}

ResidentImages::ResidentImages(const Dataset& data, const LoaderConfig& config, ParamStore& store,
                               TensorView pixels) {
  const Shape& s = pixels.shape;
  const Erase& erase = config.augment.erase;
  images_ = graph_.input("images", {data.size(), s[1], s[2], s[3]}, DType::kU8);
  rows_ = graph_.input("rows", {s[0], sizeof(ImageRow) / sizeof(int32_t)}, DType::kI32);
  const Value out = graph_.input("pixels", s, DType::kU8);
  Value noise;
  if (erase.probability > 0 && erase.mode == EraseMode::kPixel)
    noise = graph_.input("noise", {s[1], 1 << Eraser::kBits}, DType::kU8);
  graph_.nodes.push_back({.op = TakeImages{},
                          .in = {images_.id(), rows_.id(), noise.id()},
                          .out = {out.id()},
                          .name = "take"});
  program_ = std::make_unique<Program>(graph_, std::span<const Value>(), store,
                                       CompileOptions{.shared = {{out, pixels}}});
  if (noise) program_->upload(noise, Eraser(erase).normal().data());
  fill(data, config, store.backend());
}

void ResidentImages::fill(const Dataset& data, LoaderConfig config, Backend& backend) {
  const int64_t size = image_bytes(config.preprocess);
  config.rows = config.shuffle = false, config.augment = {}, config.mix = {}, config.repeat = 1;
  config.turns = {};
  config.batch_size = std::clamp<int64_t>(kUploadBytes / size, 1, data.size());
  Loader loader(data, config);
  Batch batch;
  loader.start(0);
  auto* to = static_cast<std::byte*>((*program_)[images_].data);
  for (; loader.next(batch); to += batch.count * size)
    backend.upload({to, {batch.count * size}, DType::kU8}, batch.pixels().data());
}

}  // namespace vitrum
