// classify MODEL IMAGE...: the three most probable labels of each image, and how alike the first
// two are.
#include <cmath>
#include <cstdio>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/infer/predictor.h"

static float cosine(const std::vector<float>& a, const std::vector<float>& b) {
  float dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return dot / std::sqrt(aa * bb);
}

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: classify MODEL IMAGE...\n"), 2;
  vitrum::Predictor predictor(argv[1]);  // for all images and threads

  for (int i = 2; i < argc; ++i) {
    std::printf("%s\n", argv[i]);
    for (const vitrum::Prediction& p : predictor.classify(std::string(argv[i]), 3))
      std::printf("  %6.2f %%  %s\n", 100.0 * static_cast<double>(p.probability), p.label.c_str());
  }
  if (argc > 3)
    std::printf("likeness of the first two: %.3f\n",
                static_cast<double>(cosine(predictor.features(std::string(argv[2])),
                                           predictor.features(std::string(argv[3])))));
} catch (const vitrum::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.kind());
}
