#include "vitrum/weights/hf_config.h"

namespace vitrum {

// Below 384 pixels a crop from an image larger by crop_pct, else a squash. Others say what they
// crop to, and with that the image's size.
void read_convnext_preprocessor(const ConfigText& stated, ModelSpec& spec) {
  const JsonKeys keys(stated.text, stated.path);
  constexpr int64_t kNoCrop = 384;
  const HfSize size =
      read_hf_size(keys, "size", {spec.config.image_h(), spec.config.image_w(), true}, true);
  const bool crops = keys.boolean("do_center_crop", false);
  const HfSize image = crops ? read_hf_size(keys, "crop_size", size, false) : size;
  set_image_size(spec, image.height, image.width);
  if (crops) return read_hf_preprocessor(keys, spec.config, spec.preprocess);
  Preprocessing& p = spec.preprocess;
  p.interpolation = kPillowFilters[static_cast<size_t>(keys.integer("resample", 2, {0, 5}))];
  p.crop_mode = image.height < kNoCrop ? "center" : "squash";
  if (image.height < kNoCrop) {
    p.crop_pct = keys.number("crop_pct", 224.0 / 256, 0.01, 1);
    p.resize = static_cast<int64_t>(static_cast<double>(image.height) / p.crop_pct);
    p.crop_floor = true;
  }
  read_hf_normalization(keys, spec.config.channels(), p);
}

}  // namespace vitrum
