#include "vitrum/report/reconstructions.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/models/mae.h"
#include "vitrum/runtime/program.h"
#include "vitrum/weights/mae_decoder.h"

namespace vitrum {
namespace {

constexpr uint8_t kGrey = 128, kWhite = 255;
constexpr int kGap = 4, kShownSize = 112;  // pixels; smaller photos are enlarged

// The model for one number of images.
class Guesser {
 public:
  Guesser(const std::string& model, const ModelSpec& spec, const MaeConfig& mae, int64_t batch,
          const DeviceOptions& device)
      : backend_(make_backend(device)),
        image_(graph_.input(
            "image", {batch, spec.config.channels(), spec.config.image_h(), spec.config.image_w()},
            DType::kU8)),
        guess_(mae_guess(Scope(graph_),
                         normalize(image_, spec.preprocess.mean, spec.preprocess.std),
                         *spec.config.as<ViTConfig>(), mae)),
        store_(graph_, *backend_),
        program_(compile(model, spec)) {}

  struct Guess {
    std::vector<float> pixels, hidden;
  };
  Guess run(const std::vector<uint8_t>& images, uint64_t seed) {
    const RandomState random{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    program_.upload(image_, images.data());
    program_.upload(graph_.rng(), &random);
    program_.run();
    Guess guess{std::vector<float>(static_cast<size_t>(guess_.pixels.shape().numel())),
                std::vector<float>(static_cast<size_t>(guess_.hidden.shape().numel()))};
    program_.download(guess.pixels.data(), guess_.pixels);
    program_.download(guess.hidden.data(), guess_.hidden);
    return guess;
  }

 private:
  Program compile(const std::string& model, const ModelSpec& spec) {
    load_weights(model, spec, store_);
    load_decoder(model, spec, store_);
    fuse(graph_);
    const std::array outputs = {guess_.pixels, guess_.hidden};
    return Program(graph_, outputs, store_, {.compute = DType::kF32});
  }

  std::unique_ptr<Backend> backend_;
  Graph graph_{Mode::kInference};
  Value image_;
  MaeGuess guess_;
  ParamStore store_;
  Program program_;
};

// Where a value of a patch, flattened channel last, is in the image.
struct Patches {
  explicit Patches(const ViTConfig& c)
      : channels(c.channels),
        h(c.patch_h),
        w(c.patch_w),
        columns(c.image_w / c.patch_w),
        image_w(c.image_w),
        plane(c.image_h * c.image_w) {}
  int64_t values() const { return channels * h * w; }
  size_t at(int64_t patch, int64_t value) const {
    const int64_t channel = value % channels, x = value / channels % w, y = value / channels / w;
    return static_cast<size_t>(channel * plane + (patch / columns * h + y) * image_w +
                               patch % columns * w + x);
  }
  int64_t channels, h, w, columns, image_w, plane;
};

// Of the photo's values in a patch, as the model sees them.
struct Spread {
  double mean = 0, deviation = 1;
};

class Painter {
 public:
  Painter(const ModelSpec& spec, const MaeConfig& mae)
      : patches_(*spec.config.as<ViTConfig>()), p_(spec.preprocess), norm_pix_(mae.norm_pix) {}

  // Both begin as the photo.
  void paint(Reconstruction& r, int64_t patch, std::span<const float> guess) const {
    const Spread spread = norm_pix_ ? spread_of(r.photo, patch) : Spread{};
    for (int64_t v = 0; v < patches_.values(); ++v) {
      const double x = static_cast<double>(guess[static_cast<size_t>(v)]);
      const double seen = x * spread.deviation + spread.mean;
      const auto channel = static_cast<size_t>(v % patches_.channels);
      const double byte = 255 * (seen * factor(p_.std, channel, 1) + factor(p_.mean, channel, 0));
      r.seen.pixels[patches_.at(patch, v)] = kGrey;
      r.filled.pixels[patches_.at(patch, v)] =
          static_cast<uint8_t>(std::clamp(std::nearbyint(byte), 0.0, 255.0));
    }
  }
  int64_t values() const { return patches_.values(); }

 private:
  static double factor(const std::vector<float>& list, size_t channel, double fallback) {
    return list.empty() ? fallback : static_cast<double>(list[channel % list.size()]);
  }
  // As the authors: the deviation of n - 1, a little more so that it is never 0.
  Spread spread_of(const Image& photo, int64_t patch) const {
    double sum = 0, squares = 0;
    const auto n = static_cast<double>(patches_.values());
    for (int64_t v = 0; v < patches_.values(); ++v) {
      const auto channel = static_cast<size_t>(v % patches_.channels);
      const double x = (photo.pixels[patches_.at(patch, v)] / 255.0 - factor(p_.mean, channel, 0)) /
                       factor(p_.std, channel, 1);
      sum += x, squares += x * x;
    }
    const double mean = sum / n, variance = std::max(0.0, (squares - n * mean * mean) / (n - 1));
    return {mean, std::sqrt(variance + 1e-6)};
  }

  Patches patches_;
  Preprocessing p_;
  bool norm_pix_;
};

// Those that can be read, as the model is given them.
std::vector<Image> photos_of(const ModelSpec& spec, const Dataset& images, int64_t most) {
  const Preprocess preprocess = preprocess_of(spec);
  Preprocessor preprocessor(preprocess);
  std::vector<Image> photos;
  for (int64_t i = 0; i < images.size() && std::ssize(photos) < most; ++i) {
    try {
      Image photo;
      photo.reshape(preprocess.channels, preprocess.height, preprocess.width);
      preprocessor.apply(images.read(i), photo.pixels);
      photos.push_back(std::move(photo));
    } catch (const Error&) {  // a broken file, which training has said
      if (i > 10 * most) throw;
    }
  }
  return photos;
}

// Each pixel as so many, into a sheet of three channels.
void put(const Image& image, int scale, int top, int left, Image& sheet) {
  for (int c = 0; c < 3; ++c)
    for (int y = 0; y < image.height * scale; ++y)
      for (int x = 0; x < image.width * scale; ++x)
        sheet.plane(c)[static_cast<size_t>(top + y) * static_cast<size_t>(sheet.width) +
                       static_cast<size_t>(left + x)] =
            image.plane(std::min(
                c, image.channels -
                       1))[static_cast<size_t>(y / scale) * static_cast<size_t>(image.width) +
                           static_cast<size_t>(x / scale)];
}

}  // namespace

bool has_decoder(const std::string& model) {
  try {
    return stored_decoder(model).has_value();
  } catch (const Error&) {
    return false;
  }
}

std::vector<Reconstruction> reconstruct(const std::string& model, const Recipe& recipe,
                                        const Dataset& images, int64_t most,
                                        const DeviceOptions& device) {
  const ModelSpec spec = resolve_model(model);
  const std::optional<MaeConfig> mae = stored_decoder(model);
  if (!mae || !spec.config.as<ViTConfig>())
    fail_input("{} has no decoder of a masked autoencoder", model);
  std::vector<Reconstruction> all;
  std::vector<uint8_t> pixels;
  for (Image& photo : photos_of(spec, images, most)) {
    pixels.insert(pixels.end(), photo.pixels.begin(), photo.pixels.end());
    all.push_back({photo, photo, std::move(photo)});
  }
  if (all.empty()) return all;
  Guesser guesser(model, spec, *mae, std::ssize(all), device);
  const auto guess = guesser.run(pixels, static_cast<uint64_t>(recipe.seed));
  const Painter painter(spec, *mae);
  const size_t count = guess.hidden.size() / all.size();
  const auto values = static_cast<size_t>(painter.values());
  for (size_t i = 0; i < guess.hidden.size(); ++i)
    if (guess.hidden[i] > 0)
      painter.paint(all[i / count], static_cast<int64_t>(i % count),
                    std::span(guess.pixels).subspan(i * values, values));
  return all;
}

Image sheet_of(const std::vector<Reconstruction>& all) {
  Image sheet;
  if (all.empty()) return sheet;
  const Image& first = all.front().photo;
  const int scale = std::max(1, kShownSize / std::max(first.height, first.width));
  const int height = scale * first.height + kGap, width = scale * first.width + kGap;
  const int columns = all.size() > 1 ? 2 : 1;
  const int rows = (static_cast<int>(all.size()) + columns - 1) / columns;
  const int group = 3 * width + 2 * kGap;
  sheet.reshape(3, rows * height + kGap, columns * group);
  std::ranges::fill(sheet.pixels, kWhite);
  for (int i = 0; i < static_cast<int>(all.size()); ++i) {
    const Reconstruction& r = all[static_cast<size_t>(i)];
    int left = i % columns * group + kGap;
    for (const Image* image : {&r.photo, &r.seen, &r.filled}) {
      put(*image, scale, i / columns * height + kGap, left, sheet);
      left += width;
    }
  }
  return sheet;
}

}  // namespace vitrum
