#include "vitrum/data/augment.h"

#include <algorithm>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

// One row of the output: columns [left, left + width) of `row`, with zeros outside of it; null is a
// row of zeros.
void copy_row(const uint8_t* row, int left, bool mirror, std::span<uint8_t> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  if (!row) return;
  const int width = static_cast<int>(out.size());
  const int begin = std::max(0, -left), end = std::min(width, width - left);
  if (begin < end) std::copy(row + left + begin, row + left + end, out.begin() + begin);
  if (mirror) std::reverse(out.begin(), out.end());
}

// timm's and torchvision's RandomResizedCrop: ten tries, then the largest centre within the ratios.
Window resized_crop(const Augment& a, int height, int width, PhiloxStream random) {
  const double area = static_cast<double>(height) * width;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = random.uniform(a.scale[0], a.scale[1]) * area;
    const double ratio = std::exp(random.uniform(std::log(a.ratio[0]), std::log(a.ratio[1])));
    const double w = std::nearbyint(std::sqrt(target * ratio)),
                 h = std::nearbyint(std::sqrt(target / ratio));
    if (!(w >= 1 && h >= 1 && w <= width && h <= height)) continue;
    const int rows = static_cast<int>(h), columns = static_cast<int>(w);
    const int top = static_cast<int>(random.below(static_cast<uint32_t>(height - rows + 1)));
    const int left = static_cast<int>(random.below(static_cast<uint32_t>(width - columns + 1)));
    return {top, left, rows, columns};
  }
  const double ratio = static_cast<double>(width) / height;
  int rows = height, columns = width;
  if (ratio < a.ratio[0])
    rows = std::max(1, static_cast<int>(std::nearbyint(width / a.ratio[0])));
  else if (ratio > a.ratio[1])
    columns = std::max(1, static_cast<int>(std::nearbyint(height * a.ratio[1])));
  return {(height - rows) / 2, (width - columns) / 2, rows, columns};
}

// The crop is already made: all of it is resized.
Preprocess squashed(Preprocess p, Filter filter) {
  p.crop_mode = CropMode::kSquash, p.crop_pct = 1, p.resize = 0, p.interpolation = filter;
  return p;
}

Preprocess main_preprocess(const Preprocess& p, const Augment& a) {
  return a.resized_crop ? squashed(p, a.random_filter ? Filter::kBicubic : a.filter) : p;
}

void check_range(const char* name, const std::array<double, 2>& range, double low, double high) {
  if (!(range[0] >= low && range[0] <= range[1] && range[1] <= high))
    fail_usage("{} is [{}, {}]; expected two numbers from {} to {}, the smaller first", name,
               range[0], range[1], low, high);
}

}  // namespace

AugmentParts parse_augment(std::string_view text) {
  const std::vector<std::string> crops = {"none",
                                          "flip",
                                          "alternating-flip",
                                          "crop",
                                          "crop-flip",
                                          "crop-alternating-flip",
                                          "resized-crop",
                                          "resized-crop-flip",
                                          "resized-crop-alternating-flip"};
  AugmentParts all;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    const auto known = std::find(crops.begin(), crops.end(), part);
    const auto policies = policy_names();
    const std::string_view name = part.substr(0, part.find('-'));
    if (known == crops.end() &&
        std::find(policies.begin(), policies.end(), name) == policies.end()) {
      std::vector<std::string> words = crops;
      words.insert(words.end(), policies.begin(), policies.end());
      const std::string near = did_you_mean(part, words);
      fail_usage(
          "augment '{}': unknown part '{}'{}; there are none, flip, crop, crop-flip, "
          "resized-crop, resized-crop-flip, alternating-flip in place of flip, and the policies "
          "rand-..., trivial, auto-..., three, joined by '+'",
          shown(text), shown(part), near.empty() ? did_you_mean(name, words) : near);
    }
    if (known == crops.end()) {
      all.policies.push_back(parse_policy(part));
    } else {
      all.flip |= part.ends_with("flip");
      all.alternates |= part.ends_with("alternating-flip");
      all.resized_crop |= part.starts_with("resized");
      all.crop |= part.starts_with("crop");
    }
  }
  if (all.crop && all.resized_crop)
    fail_usage("augment '{}': crop and resized-crop exclude each other", shown(text));
  return all;
}

bool runs_on_device(const Augment& a) {
  const auto used = [](double strength) { return strength != 0; };
  return !a.resized_crop && a.policies.empty() &&
         std::none_of(a.jitter.begin(), a.jitter.end(), used);
}

Transform::Transform(const Preprocess& preprocess, const Augment& augment)
    : size_(preprocess),
      augment_(augment),
      preprocessor_(main_preprocess(preprocess, augment)),
      bilinear_(squashed(preprocess, Filter::kBilinear)),
      eraser_(augment.erase) {
  constexpr int kMaxPadding = 1 << 14;
  if (augment_.crop_padding < 0 || augment_.crop_padding > kMaxPadding)
    fail_usage("crop_padding is {}; expected 0 to {}", augment_.crop_padding, kMaxPadding);
  check_range("scale", augment_.scale, 1e-6, 1);
  check_range("ratio", augment_.ratio, 1e-3, 1e3);
  check_range("erase_area", augment_.erase.area, 0, 1);
}

Window Transform::part(int height, int width, const SampleKey& key) const {
  if (!augment_.resized_crop) return {0, 0, height, width};
  return resized_crop(augment_, height, width, key.stream(kResizedCropStream));
}

void Transform::preprocess(const Image& part, const SampleKey& key, std::span<uint8_t> out) {
  const bool second = augment_.resized_crop && augment_.random_filter &&
                      key.stream(kResizedCropStream | 1u << 31).next_u32() >> 31;
  (second ? bilinear_ : preprocessor_).apply(part, out);
}

// All draws are made whether used or not, so that one switch does not change what another one does.
Transform::Shift Transform::draw_shift(const SampleKey& key) const {
  PhiloxStream random = key.stream(kAugmentStream);
  const int padding = augment_.crop_padding;
  const auto window = static_cast<uint32_t>(2 * padding + 1);
  Shift by;
  by.down = static_cast<int>(random.below(window)) - padding;
  by.right = static_cast<int>(random.below(window)) - padding;
  by.mirror = draw_flip(key, random.next_u32());
  return by;
}

// Where flips alternate, only which epochs an image is flipped in is drawn: the even or the odd
// ones.
bool Transform::draw_flip(const SampleKey& key, uint32_t bits) const {
  if (!augment_.flip) return false;
  if (!augment_.alternates) return bits >> 31 != 0;
  const SampleKey image{.seed = key.seed, .index = key.index};
  const uint32_t first = image.stream(kAugmentStream | 1u << 31).next_u32() >> 31;
  return ((first + static_cast<uint32_t>(key.epoch + key.repetition)) & 1) != 0;
}

void Transform::shift(const Shift& by, std::span<const uint8_t> in, std::span<uint8_t> out) const {
  const auto width = static_cast<size_t>(size_.width);
  const uint8_t* plane = in.data();
  for (int channel = 0; channel < size_.channels; ++channel) {
    for (int y = 0; y < size_.height; ++y, out = out.subspan(width)) {
      const int from = y + by.down;
      const bool inside = from >= 0 && from < size_.height;
      copy_row(inside ? plane + static_cast<size_t>(from) * width : nullptr, by.right, by.mirror,
               out.first(width));
    }
    plane += static_cast<size_t>(size_.height) * width;
  }
}

ImageRow Transform::row(const SampleKey& key, bool mild) const {
  const Shift by = draw_shift(key);
  ImageRow row{.image = static_cast<int32_t>(key.index),
               .down = by.down,
               .right = by.right,
               .mirror = by.mirror};
  if (mild || augment_.erase.probability <= 0) return row;
  PhiloxStream random = key.stream(kEraseStream);
  const Window box = eraser_.draw_box(size_.height, size_.width, random);
  const ByteColour colour = eraser_.draw_colour(size_.channels, random);
  row.top = box.top, row.left = box.left, row.height = box.height, row.width = box.width;
  for (size_t c = 0; c < colour.size(); ++c) row.colour |= uint32_t{colour[c]} << (8 * c);
  row.position = random.position(), row.stream = key.stream_id(kEraseStream);
  row.seed_low = static_cast<uint32_t>(key.seed),
  row.seed_high = static_cast<uint32_t>(key.seed >> 32);
  row.index_low = static_cast<uint32_t>(key.stream_index());
  row.index_high = static_cast<uint32_t>(key.stream_index() >> 32);
  return row;
}

void Transform::draw_edits(const SampleKey& key) {
  edits_.clear();
  PhiloxStream random = key.stream(kPolicyStream), jitter = key.stream(kJitterStream);
  const EditSettings settings{.height = size_.height,
                              .width = size_.width,
                              .filter = augment_.filter,
                              .random_filter = augment_.random_filter,
                              .fill = augment_.fill};
  for (const Policy& policy : augment_.policies)
    vitrum::draw_edits(policy, settings, random, edits_);
  draw_jitter(augment_.jitter, jitter, edits_);
}

InputSize Transform::apply(const Image& part, const SampleKey& key, bool mild,
                           std::span<uint8_t> out) {
  if (size_.max_patches > 0) return preprocessor_.apply(part, out);
  const InputSize size{size_.height, size_.width};
  const Shift by = draw_shift(key);
  if (by.any()) {
    plain_.resize(out.size());
    preprocess(part, key, plain_);
    shift(by, plain_, out);
  } else {
    preprocess(part, key, out);
  }
  if (mild) return size;
  draw_edits(key);
  if (!edits_.empty()) {
    edited_.reshape(size_.channels, size_.height, size_.width);
    std::copy(out.begin(), out.end(), edited_.pixels.begin());
    for (const Edit& edit : edits_) editor_.apply(edit, edited_);
    std::copy(edited_.pixels.begin(), edited_.pixels.end(), out.begin());
  }
  if (augment_.erase.probability > 0) {
    PhiloxStream random = key.stream(kEraseStream);
    eraser_.apply(size_.channels, size_.height, size_.width, random, out.data());
  }
  return size;
}

}  // namespace vitrum
