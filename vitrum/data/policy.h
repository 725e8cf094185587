// Augmentation policies: which edits a training image gets. RandAugment, AutoAugment and 3-Augment
// as timm defines them, TrivialAugment and AutoAugment's CIFAR-10 and SVHN policies as torchvision
// does.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/philox.h"
#include "vitrum/data/edit.h"

namespace vitrum {

// An operation of a policy: what a level means to it. The suffixes are timm's: "increasing" ones
// grow stronger with the level.
enum class PolicyOp : uint8_t {
  kIdentity,
  kAutoContrast,
  kEqualize,
  kInvert,
  kRotate,
  kPosterize,
  kPosterizeIncreasing,
  kPosterizeOriginal,
  kSolarize,
  kSolarizeIncreasing,
  kSolarizeAdd,
  kColor,
  kColorIncreasing,
  kContrast,
  kContrastIncreasing,
  kBrightness,
  kBrightnessIncreasing,
  kSharpness,
  kSharpnessIncreasing,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kDesaturate,
  kBlur,
  kBlurRand,  // up to its level
};

enum class LevelScale : uint8_t {
  kTimm,    // 0 to 10
  kTens,    // torchvision's AutoAugment: bins 0 to 9
  kThirty,  // torchvision's TrivialAugmentWide: bins 0 to 30
};

struct PolicyStep {
  PolicyOp op = PolicyOp::kIdentity;
  double probability = 1;
  double level = 0;  // on the policy's scale; negative: any of its bins
};

// Each layer chooses one of `choices` and does its steps.
struct Policy {
  LevelScale scale = LevelScale::kTimm;
  std::vector<std::vector<PolicyStep>> choices = {};
  std::vector<double> weights = {};  // none: all alike. With weights no choice is made twice
  int layers = 1;
  double deviation = 0;  // of the level, normal; infinity: uniform from 0 up to it
  double max_level = 10;
  double strength = 1;  // on the scale of bins: how much of each operation's range is used
  double jitter = 0;    // colour jitter that belongs to the policy
};

// "rand-m9-mstd0.5-inc1", "trivial-m0.5", "auto-original", "auto-cifar10", "three", ...; fails on
// anything else, saying what is wrong with it.
Policy parse_policy(std::string_view text);
std::vector<std::string> policy_names();  // the first words of policies

PolicyOp parse_op(std::string_view name);  // timm's and torchvision's names

// What edits need to know besides their level.
struct EditSettings {
  int height = 0, width = 0;
  Filter filter = Filter::kBicubic;
  bool random_filter = false;  // bilinear and bicubic by turns instead
  ByteColour fill{};           // of timm's policies; torchvision's fill with black
};

// The edit of an operation at a level, or none where it leaves the image as it is. `draw`, uniform
// in [0, 1), decides the direction of operations that have two, and the amount of kBlurRand.
std::optional<Edit> edit_at(const Policy& policy, PolicyOp op, double level, double draw,
                            const EditSettings& settings);

// Appends what one image gets.
void draw_edits(const Policy& policy, const EditSettings& settings, PhiloxStream& random,
                std::vector<Edit>& edits);

// torchvision's ColorJitter: brightness, contrast, saturation and hue, each by up to so much, in
// random order.
void draw_jitter(const std::array<double, 4>& amounts, PhiloxStream& random,
                 std::vector<Edit>& edits);

}  // namespace vitrum
