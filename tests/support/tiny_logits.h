// What a model directory of three channels and seven classes says to three images.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "tests/support/data_files.h"
#include "vitrum/infer/predictor.h"

namespace vitrum::test {

// (3, 7). On a CPU unless a device is named.
inline std::vector<float> tiny_logits(const std::string& model, PredictorOptions options = {}) {
  if (options.device == "auto") options.device = "cpu";
  options.threads = 2;
  Predictor predictor(model, options);
  Preprocessor preprocessor(preprocess_of(predictor.model()));
  std::vector<uint8_t> pixels(3 * preprocessor.bytes());
  for (size_t i = 0; i < 3; ++i)
    preprocessor.apply(gradient(3, 40 + 9 * static_cast<int>(i), 70),
                       std::span(pixels).subspan(i * preprocessor.bytes(), preprocessor.bytes()));
  std::vector<float> out(3 * 7);
  predictor.run(pixels, out, {});
  return out;
}

}  // namespace vitrum::test
