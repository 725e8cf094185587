#include "vitrum/report/attention.h"

#include <memory>

#include "vitrum/data/preprocess.h"
#include "vitrum/explain/attention_program.h"
#include "vitrum/explain/picture.h"

namespace vitrum {
namespace {

constexpr int kEdge = 144;                     // of a picture, in pixels
constexpr int64_t kCheapMacs = 1'000'000'000;  // of one image

struct Explainer {
  Explainer(const std::string& model, const PredictorOptions& options)
      : predictor(model, options),
        preprocess(preprocess_of(predictor.model())),
        preprocessor(preprocess),
        program(predictor.model(), predictor.store()),
        pixels(preprocessor.bytes()) {}

  Image draw(const Image& image) {
    preprocessor.apply(image, pixels);
    program.run(pixels.data());
    predictor.check_answer(program.logits());
    const PatchMap map = rollout(program.all());
    return overlay(show_photo(image, preprocess, kEdge), map, range_of(map));
  }

  Predictor predictor;
  Preprocess preprocess;
  Preprocessor preprocessor;
  AttentionProgram program;
  std::vector<uint8_t> pixels;
};

}  // namespace

Overlay attention_overlay(const std::string& model, const PredictorOptions& options) {
  const auto explainer = std::make_shared<Explainer>(model, options);
  return [explainer](const Image& image, const SampleResult&) { return explainer->draw(image); };
}

bool cheap_attention(const ReportRun& run) {
  return run.model && run.model->layers[0].macs <= kCheapMacs;
}

}  // namespace vitrum
