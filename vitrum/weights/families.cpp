// The registry: one line a family. Where names or a model fit several, the first is taken.
#include <fmt/format.h>

#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/weights/family.h"

namespace vitrum {

// families/
extern const WeightFamily kDinov2Weights, kViTWeights, kSwinWeights, kResNetWeights;
extern const WeightFamily kDinov3Weights, kDinov3GatedWeights, kEva02Weights, kEva02ApartWeights;
extern const WeightFamily kDinov2GatedWeights, kBeitWeights, kClipWeights, kSiglipWeights;
extern const WeightFamily kSwinV2Weights, kConvNeXtWeights, kClipClassifierWeights;
extern const WeightFamily kSiglipNaflexWeights;
extern const WeightFamily kDinov2RegistersWeights, kDinov2GatedRegistersWeights;

std::span<const WeightFamily* const> weight_families() {
  static constexpr const WeightFamily* kAll[] = {
      &kDinov2Weights,
      &kDinov2GatedWeights,
      &kDinov2RegistersWeights,
      &kDinov2GatedRegistersWeights,
      &kDinov3GatedWeights,  // a file of these has what the others have
      &kDinov3Weights,
      &kEva02Weights,
      &kEva02ApartWeights,
      &kBeitWeights,
      &kClipWeights,
      &kClipClassifierWeights,
      &kSiglipNaflexWeights,
      &kSiglipWeights,
      &kViTWeights,
      &kSwinWeights,
      &kSwinV2Weights,
      &kConvNeXtWeights,
      &kResNetWeights,
  };
  return kAll;
}

int64_t square_root(int64_t n) {
  const auto root = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n))));
  return root * root == n ? root : 0;
}

// A bare file cannot say what to compute with; a directory of timm's says it to us only.
std::vector<std::string> computed_otherwise(const Dialect& dialect, float eps, Act act,
                                            bool says_so) {
  std::vector<std::string> notes;
  if (eps != dialect.eps && !says_so)
    notes.push_back(fmt::format("{} computes LayerNorm with eps {}, the model with {}",
                                dialect.title, dialect.eps, eps));
  if (act != dialect.act && !says_so && dialect.name != "timm")
    notes.push_back(fmt::format("{} computes {}, the model {}", dialect.title,
                                kActNames[static_cast<size_t>(dialect.act)],
                                kActNames[static_cast<size_t>(act)]));
  return notes;
}

void RequirePlain::operator()(bool has, const char* what) const {
  if (!has) fail_input("{} has no {} {}", dialect.title, kind, what);
}

const WeightFamily& weights_of(const ModelConfig& config) {
  for (const WeightFamily* family : weight_families())
    if (family->name == family_of(config) && family->holds(config)) return *family;
  fail("the {} family has no file in weights/families", family_of(config));
}

}  // namespace vitrum
