#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/data/decode.h"

namespace vitrum {

// Images decoded from their files each time they are read; always RGB. Where the bytes of a file
// come from is up to those derived.
class EncodedDataset : public Dataset {
 public:
  explicit EncodedDataset(const DecodeOptions& options) : options_(options) {}

  ImageSize image_size() const final { return {3, 0, 0}; }
  std::vector<uint8_t> file(int64_t index) const override = 0;
  void read_into(int64_t index, Image& image) const final {
    image = decode_image(file(index), name(index), options_);
  }
  void read_part(int64_t index, const ChooseWindow& choose, Image& image) const final {
    if (options_.exif_orientation) return Dataset::read_part(index, choose, image);
    image = decode_part(file(index), name(index), choose);
  }

 private:
  DecodeOptions options_;
};

}  // namespace vitrum
