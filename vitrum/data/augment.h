// What training does to an image besides preprocessing: a random crop and flip, policies of edits,
// colour jitter, erasing.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "vitrum/core/philox.h"
#include "vitrum/data/edit.h"
#include "vitrum/data/erase.h"
#include "vitrum/data/policy.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/graph/op.h"

namespace vitrum {

// In the order in which it is done.
struct Augment {
  // Inception's crop instead of resize and centre crop: a part of the image of random area and
  // shape, resized.
  bool resized_crop = false;
  std::array<double, 2> scale = {0.08, 1}, ratio = {3.0 / 4, 4.0 / 3};
  int crop_padding =
      0;  // as torchvision's RandomCrop(size, padding): zeros round the image, then a random window
  bool flip = false;        // left-right, every second image
  bool alternates = false;  // flips an image in every second epoch, and in no other
  std::vector<Policy> policies = {};
  std::array<double, 4> jitter = {};  // brightness, contrast, saturation, hue
  Erase erase = {};

  Filter filter = Filter::kBicubic;  // of the resized crop and the policies
  bool random_filter = false;        // bilinear and bicubic by turns instead
  ByteColour fill = {};              // where timm's policies look past the border
};

// Whether the op TakeImages does all of it: shifts, flips and erasing.
bool runs_on_device(const Augment& augment);

// What a recipe's `augment` says: parts joined by '+', as in "crop-flip+trivial-m0.5". Fails on a
// part that is neither a crop nor a policy.
struct AugmentParts {
  bool crop = false, resized_crop = false, flip = false, alternates = false;
  std::vector<Policy> policies;
};
AugmentParts parse_augment(std::string_view text);

// Whose chances are drawn: they depend on nothing else.
struct SampleKey {
  uint64_t seed = 0;
  int64_t epoch = 0, index = 0;
  int repetition = 0;  // of the image in its epoch

  uint32_t stream_id(uint32_t id) const { return id | static_cast<uint32_t>(repetition) << 8; }
  uint64_t stream_index() const {
    return static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(index);
  }
  PhiloxStream stream(uint32_t id) const { return {seed, stream_id(id), stream_index()}; }
};

// Preprocesses and augments one image after the other; keeps scratch memory, so give each thread
// its own.
class Transform {
 public:
  Transform(const Preprocess& preprocess, const Augment& augment);

  // The part of a (height, width) image that apply() wants to be given.
  Window part(int height, int width, const SampleKey& key) const;

  // Writes (channels, height, width) to `out`. `mild`: crop and flip only. Images that keep their
  // shapes are preprocessed and no more; returns the size.
  InputSize apply(const Image& part, const SampleKey& key, bool mild, std::span<uint8_t> out);

  // Whether apply() turns the image left-right.
  bool mirrors(const SampleKey& key) const { return draw_shift(key).mirror; }

  // What apply() does to the image once it is preprocessed, for the op TakeImages; where that can
  // do it.
  ImageRow row(const SampleKey& key, bool mild) const;

 private:
  struct Shift {
    int down = 0, right = 0;
    bool mirror = false;
    bool any() const { return down != 0 || right != 0 || mirror; }
  };
  Shift draw_shift(const SampleKey& key) const;
  bool draw_flip(const SampleKey& key, uint32_t bits) const;
  void preprocess(const Image& part, const SampleKey& key, std::span<uint8_t> out);
  void shift(const Shift& by, std::span<const uint8_t> in, std::span<uint8_t> out) const;
  void draw_edits(const SampleKey& key);

  Preprocess size_;
  Augment augment_;
  Preprocessor preprocessor_, bilinear_;  // the latter for the second of two filters
  Eraser eraser_;
  Editor editor_;
  std::vector<Edit> edits_;
  std::vector<uint8_t> plain_;  // before the shift
  Image edited_;
};

}  // namespace vitrum
