#include "vitrum/data/augment.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "tests/data/edit_names.h"
#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "vitrum/data/decode.h"

namespace vitrum {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Slopes, an edge and some noise: tools/golden/augment_golden.py computes the same.
Image picture(int channels, int height, int width) {
  Image image;
  image.reshape(channels, height, width);
  auto pixel = image.pixels.begin();
  for (int c = 0; c < channels; ++c)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        *pixel++ = static_cast<uint8_t>(3 * x + 5 * y + 40 * c + (x * y * (c + 3)) % 29 * 4 +
                                        (x > width / 2 ? 90 : 0));
  return image;
}

struct Request {
  std::istringstream words;
  template <class T>
  T next() {
    T value;
    words >> value;
    return value;
  }
  ByteColour colour() {
    ByteColour all;
    for (uint8_t& channel : all) channel = static_cast<uint8_t>(next<int>());
    return all;
  }
  Image image() {
    const int channels = next<int>(), height = next<int>();
    return picture(channels, height, next<int>());
  }
};

Image edited(Request& r, Editor& editor) {
  Edit edit{.kind = edit_kind(r.next<std::string>()), .value = r.next<double>()};
  for (double& m : edit.matrix) m = r.next<double>();
  edit.filter = parse_filter(r.next<std::string>());
  edit.fill = r.colour();
  Image image = r.image();
  editor.apply(edit, image);
  return image;
}

Image operated(Request& r, Editor& editor) {
  const Policy policy = parse_policy(r.next<std::string>());
  const PolicyOp op = parse_op(r.next<std::string>());
  const double level = r.next<double>(), draw = r.next<double>();
  EditSettings settings{.filter = parse_filter(r.next<std::string>()), .fill = r.colour()};
  Image image = r.image();
  settings.height = image.height, settings.width = image.width;
  if (const auto edit = edit_at(policy, op, level, draw, settings)) editor.apply(*edit, image);
  return image;
}

// Each edit at several strengths, and timm's and torchvision's operations from their levels.
TEST(Edits, EqualPillowByteForByte) {
  std::ifstream file(VITRUM_SOURCE_DIR "/tests/golden/augment.txt");
  Editor editor;
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    Request r{std::istringstream(line)};
    const bool edits = r.next<std::string>() == "edit";
    const Image got = edits ? edited(r, editor) : operated(r, editor);
    const auto crc = crc32(0, got.pixels.data(), static_cast<unsigned>(got.pixels.size()));
    EXPECT_EQ(static_cast<uint32_t>(crc), r.next<uint32_t>()) << line;
  }
  EXPECT_GE(count, 150);
}

TEST(Edits, TakeImagesOfAnySize) {
  Editor editor;
  for (const auto& [height, width] : {std::pair(1, 1), {1, 50}, {2, 3}, {17, 8}})
    for (int kind = 0; kind <= static_cast<int>(EditKind::kHue); ++kind) {
      Image image = picture(3, height, width);
      editor.apply({.kind = static_cast<EditKind>(kind),
                    .value = 0.4,
                    .matrix = rotation(33, height, width)},
                   image);
      EXPECT_EQ(image.pixels.size(), static_cast<size_t>(3 * height * width));
    }
}

// ---- the language of policies ----

TEST(Policy, ReadsTimmsSyntax) {
  const Policy p = parse_policy("rand-m9-n3-p0.7-mstd0.5-mmax12-inc1");
  EXPECT_EQ(p.layers, 3);
  EXPECT_EQ(p.deviation, 0.5);
  EXPECT_EQ(p.max_level, 12);
  ASSERT_EQ(p.choices.size(), 15u);
  EXPECT_EQ(p.choices[4][0].op, PolicyOp::kPosterizeIncreasing);
  EXPECT_EQ(p.choices[4][0].level, 9);
  EXPECT_EQ(p.choices[4][0].probability, 0.7);
  EXPECT_EQ(parse_policy("rand").choices[4][0].op, PolicyOp::kPosterize);
  EXPECT_TRUE(std::isinf(parse_policy("rand-mstd101").deviation));
  EXPECT_EQ(parse_policy("rand-tweights").weights.size(), 15u);
  EXPECT_EQ(parse_policy("rand-t3aw").choices.size(), 14u);
  EXPECT_EQ(parse_policy("trivial-m0.5").strength, 0.5);
  EXPECT_EQ(parse_policy("auto-v0r").choices[12][0].op, PolicyOp::kPosterizeIncreasing);
  for (const char* name : {"original", "originalr", "v0", "v0r", "imagenet", "cifar10", "svhn"})
    EXPECT_EQ(parse_policy(std::string("auto-") + name).choices.size(), 25u) << name;
}

TEST(Policy, NamesWhatIsWrong) {
  const auto wrong = [](const char* text, const char* part) {
    EXPECT_ERROR(parse_augment(text), ErrorKind::kUsage, part);
  };
  wrong("rnd-m9", "unknown part 'rnd-m9'; did you mean 'rand'?");
  wrong("crop-flop", "did you mean 'crop-flip'?");
  wrong("crop+resized-crop", "exclude each other");
  wrong("", "unknown part ''");
  wrong("flip+", "unknown part ''");
  wrong("flip+rand-m9-x3", "unknown part 'x3'; rand takes m, n, p, mstd, mmax, inc and t");
  wrong("rand-m", "expected a number from 0 to 100 after 'm'");
  wrong("rand-m9q", "'9q' in 'm9q'");
  wrong("rand-m1e9", "'1e9' in 'm1e9'");
  wrong("rand-n99", "expected a number from 1 to 14");
  wrong("rand-mstd-inc1", "after 'mstd'");
  wrong("rand-tweight", "did you mean 'weights'?");
  wrong("trivial-m2", "from 0 to 1");
  wrong("trivial-n2", "trivial takes m");
  wrong("auto", "unknown AutoAugment policy ''; there are original");
  wrong("auto-cifar", "did you mean 'cifar10'?");
  wrong("auto-cifar10-mstd1", "unknown part 'mstd1'");
  wrong("three-m1", "three takes j");
}

TEST(Policy, CombinesParts) {
  const AugmentParts parts = parse_augment("crop-flip+trivial-m0.5+three");
  EXPECT_TRUE(parts.crop && parts.flip && !parts.resized_crop);
  EXPECT_EQ(parts.policies.size(), 2u);
  EXPECT_TRUE(parse_augment("resized-crop-flip").resized_crop);
  EXPECT_FALSE(parse_augment("resized-crop").flip);
  EXPECT_FALSE(parse_augment("none").flip);
  EXPECT_FALSE(parts.alternates);
  for (const char* text : {"alternating-flip", "crop-alternating-flip", "crop+alternating-flip",
                           "resized-crop-alternating-flip"}) {
    const AugmentParts alternating = parse_augment(text);
    EXPECT_TRUE(alternating.flip && alternating.alternates) << text;
    EXPECT_EQ(alternating.crop, text[0] == 'c') << text;
  }
}

// ---- chances ----

constexpr int kDraws = 20000;

std::vector<std::vector<Edit>> draws(const std::string& policy, const EditSettings& settings) {
  const Policy parsed = parse_policy(policy);
  std::vector<std::vector<Edit>> all(kDraws);
  for (int i = 0; i < kDraws; ++i) {
    PhiloxStream random = SampleKey{.seed = 3, .index = i}.stream(kPolicyStream);
    draw_edits(parsed, settings, random, all[static_cast<size_t>(i)]);
  }
  return all;
}

std::map<EditKind, double> shares(const std::vector<std::vector<Edit>>& all) {
  std::map<EditKind, double> share;
  for (const auto& edits : all)
    for (const Edit& edit : edits) share[edit.kind] += 1.0 / kDraws;
  return share;
}

const EditSettings kSettings{.height = 32, .width = 32};

TEST(Chances, RandAugmentDoesHalfOfTwo) {
  const auto all = draws("rand-m9-mstd0.5-inc1", kSettings);
  auto share = shares(all);
  for (const EditKind kind : {EditKind::kInvert, EditKind::kEqualize, EditKind::kColor})
    EXPECT_NEAR(share[kind], 1.0 / 15, 0.01);
  EXPECT_NEAR(share[EditKind::kAffine], 5.0 / 15, 0.02);
  double none = 0, brighter = 0, brightness = 0, level = 0;
  for (const auto& edits : all) {
    none += edits.empty() ? 1.0 / kDraws : 0;
    for (const Edit& edit : edits)
      if (edit.kind == EditKind::kBrightness) {
        ++brightness, brighter += edit.value > 1;
        level += std::abs(edit.value - 1) / 0.09;
        EXPECT_GE(edit.value, 0.1);
        EXPECT_LE(edit.value, 1.9);
      }
  }
  EXPECT_NEAR(none, 0.25, 0.01);
  EXPECT_NEAR(brighter / brightness, 0.5, 0.05);
  EXPECT_NEAR(level / brightness, 9, 0.05);
}

TEST(Chances, TrivialAugmentDoesOneOfFourteenAtAnyStrength) {
  const auto all = draws("trivial", kSettings);
  auto share = shares(all);
  EXPECT_NEAR(share[EditKind::kAffine], 5.0 / 14, 0.01);
  EXPECT_NEAR(share[EditKind::kPosterize], 1.0 / 14, 0.01);
  std::map<double, int> bits;
  for (const auto& edits : all) {
    EXPECT_LE(edits.size(), 1u);
    for (const Edit& edit : edits)
      if (edit.kind == EditKind::kPosterize) ++bits[edit.value];
  }
  EXPECT_EQ(bits.size(), 7u);  // 8 down to 2
  for (const auto& edits : draws("trivial-m0.5", kSettings))
    for (const Edit& edit : edits) {
      if (edit.kind == EditKind::kContrast) {
        EXPECT_NEAR(edit.value, 1, 0.496);
      }
      if (edit.kind == EditKind::kPosterize) {
        EXPECT_GE(edit.value, 5);
      }
      if (edit.kind == EditKind::kSolarize) {
        EXPECT_GE(edit.value, 127);
      }
    }
}

TEST(Chances, WeightedChoicesAreNotRepeated) {
  double rotations = 0;
  const Policy p = parse_policy("rand-n2-p1-tweights");
  for (int i = 0; i < 2000; ++i) {
    PhiloxStream random(1, kPolicyStream, static_cast<uint64_t>(i));
    std::vector<Edit> edits;
    draw_edits(p, kSettings, random, edits);
    ASSERT_EQ(edits.size(), 2u);
    const auto turns = [](const Edit& e) { return e.kind == EditKind::kAffine && e.matrix[0] < 1; };
    EXPECT_FALSE(turns(edits[0]) && turns(edits[1]));
    rotations += turns(edits[0]) ? 1.0 / 2000 : 0;
  }
  EXPECT_NEAR(rotations, 3 / 10.1, 0.03);
}

TEST(Chances, ThreeAugmentChoosesOneAndJitters) {
  auto share = shares(draws("three", kSettings));
  EXPECT_NEAR(share[EditKind::kSolarize], 1.0 / 3, 0.015);
  EXPECT_NEAR(share[EditKind::kBlur], 1.0 / 3, 0.015);
  EXPECT_NEAR(share[EditKind::kColor], 4.0 / 3, 0.015);  // grey is one, jitter the other
  EXPECT_NEAR(share[EditKind::kBrightness], 1, 1e-9);
}

TEST(Chances, JitterComesInAnyOrder) {
  std::map<std::vector<EditKind>, int> orders;
  for (int i = 0; i < 5000; ++i) {
    PhiloxStream random(1, kJitterStream, static_cast<uint64_t>(i));
    std::vector<Edit> edits;
    draw_jitter({0.4, 0.4, 0.4, 0.1}, random, edits);
    std::vector<EditKind> kinds;
    for (const Edit& edit : edits) {
      kinds.push_back(edit.kind);
      EXPECT_NEAR(edit.value, edit.kind == EditKind::kHue ? 0 : 1,
                  edit.kind == EditKind::kHue ? 0.1 : 0.4);
    }
    ++orders[kinds];
  }
  EXPECT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 5000 / 24, 60);
}

TEST(Erasing, TakesTheShareOfTheImageItShould) {
  const Eraser eraser({.probability = 0.25, .mean = {0.5, 0.5, 0.5}, .std = {0.1, 0.1, 0.1}});
  double erased = 0, area = 0, sum = 0, squares = 0, pixels = 0;
  for (int i = 0; i < 4000; ++i) {
    PhiloxStream random(1, kEraseStream, static_cast<uint64_t>(i)), same = random;
    std::vector<uint8_t> image(size_t{3} * 24 * 32, 255);
    eraser.apply(3, 24, 32, random, image.data());
    const Window box = eraser.draw_box(24, 32, same);
    const auto inside = static_cast<int64_t>(box.height) * box.width;
    EXPECT_LE(std::count_if(image.begin(), image.end(), [](uint8_t p) { return p != 255; }),
              3 * inside);
    if (inside == 0) continue;
    ++erased, area += static_cast<double>(inside) / (24 * 32);
    for (int y = box.top; y < box.top + box.height; ++y)
      for (int x = box.left; x < box.left + box.width; ++x) {
        const double p = image[static_cast<size_t>(y * 32 + x)] / 255.0;
        ++pixels, sum += p, squares += p * p;
      }
  }
  EXPECT_NEAR(erased / 4000, 0.25, 0.02);
  EXPECT_GT(area / erased, 0.1);
  EXPECT_LT(area / erased, 0.2);
  const double mean = sum / pixels;
  EXPECT_NEAR(mean, 0.5, 0.002);
  EXPECT_NEAR(std::sqrt(squares / pixels - mean * mean), 0.1, 0.002);
}

TEST(Erasing, FillsWithOneColourOrTheMean) {
  for (const EraseMode mode : {EraseMode::kConst, EraseMode::kRand}) {
    const Eraser eraser({.probability = 1, .mode = mode, .mean = {0.2, 0.4, 0.6}});
    std::vector<uint8_t> image(size_t{3} * 20 * 20, 0);
    PhiloxStream random(1, kEraseStream, 7), same = random;
    eraser.apply(3, 20, 20, random, image.data());
    const Window box = eraser.draw_box(20, 20, same);
    ASSERT_GT(box.height * box.width, 0);
    for (size_t c = 0; c < 3; ++c) {
      std::map<uint8_t, int> colours;
      for (size_t i = 0; i < 400; ++i) ++colours[image[c * 400 + i]];
      if (mode == EraseMode::kConst) {
        EXPECT_EQ(colours[static_cast<uint8_t>(51 + 51 * c)], box.height * box.width);
      }
      EXPECT_LE(colours.size(), 2u);
    }
  }
}

// ---- the resized crop ----

TEST(ResizedCrop, KeepsItsAreaAndShape) {
  const Transform transform({.height = 16, .width = 16}, {.resized_crop = true});
  double small = 0, area = 0;
  for (int i = 0; i < 4000; ++i) {
    const Window w = transform.part(300, 400, {.seed = 1, .index = i});
    const double share = w.height * w.width / 120000.0, ratio = double(w.width) / w.height;
    ASSERT_TRUE(w.top >= 0 && w.left >= 0 && w.top + w.height <= 300 && w.left + w.width <= 400);
    EXPECT_GT(share, 0.079);
    EXPECT_TRUE(ratio > 0.74 && ratio < 1.35);
    area += share / 4000, small += share < 0.31 ? 1.0 / 4000 : 0;
  }
  EXPECT_NEAR(area, 0.432, 0.015);  // as timm's get_params(): large ones fit less often
  EXPECT_NEAR(small, 0.340, 0.03);
}

TEST(ResizedCrop, FallsBackToTheCentre) {
  const Transform transform({.height = 16, .width = 16}, {.resized_crop = true});
  const Window w = transform.part(10, 1000, {});
  EXPECT_EQ(w.height, 10);
  EXPECT_EQ(w.width, 13);
  EXPECT_EQ(w.left, 493);
}

TEST(ResizedCrop, DecodesOnlyItsPart) {
  Editor editor;
  for (const char* name :
       {"rgb420", "rgb422", "rgb444", "progressive", "cmyk", "grey", "restart"}) {
    const auto bytes =
        read_bytes(std::string(VITRUM_SOURCE_DIR "/tests/golden/images/") + name + ".jpg");
    const Image whole = decode_image(bytes, name);
    PhiloxStream random(1, kResizedCropStream, 0);
    for (int i = 0; i < 20; ++i) {
      const int top = static_cast<int>(random.below(static_cast<uint32_t>(whole.height)));
      const int left = static_cast<int>(random.below(static_cast<uint32_t>(whole.width)));
      const Window window{
          top, left, 1 + static_cast<int>(random.below(static_cast<uint32_t>(whole.height - top))),
          1 + static_cast<int>(random.below(static_cast<uint32_t>(whole.width - left)))};
      Image cropped = whole;
      crop(window, cropped);
      const Image part = decode_part(bytes, name, [&](int, int) { return window; });
      EXPECT_EQ(part.pixels, cropped.pixels) << name;
    }
  }
}

TEST(Transform, IsMildWhenTold) {
  const Image image = picture(3, 32, 32);
  const Preprocess size{.height = 32, .width = 32};
  Transform transform(size, {.policies = {parse_policy("rand-n4-p1")},
                             .jitter = {0.4, 0.4, 0.4, 0.1},
                             .erase = {.probability = 1}});
  std::vector<uint8_t> out(image.pixels.size());
  transform.apply(image, {}, true, out);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), image.pixels.begin()));
  transform.apply(image, {}, false, out);
  EXPECT_FALSE(std::equal(out.begin(), out.end(), image.pixels.begin()));
}

}  // namespace
}  // namespace vitrum
