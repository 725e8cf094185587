// The small model of tests/golden/dialects, which exists in every framework's files.
#pragma once
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/vit_of.h"
#include "vitrum/graph/passes.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/program.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum::test {

inline std::string dialect_file(const std::string& name) {
  return VITRUM_SOURCE_DIR "/tests/golden/dialects/" + name;
}

inline std::vector<float> expected_values(const std::string& name) {
  static const auto file = open_tensors(dialect_file("expected.safetensors"));
  return read_floats(*file, file->at(name));
}

// What the bare files hold; eps and activation as their frameworks have them.
inline ModelSpec dialect_spec() {
  ModelSpec spec{.architecture = "golden", .config = ViTConfig{}, .preprocess = {}, .labels = {}};
  spec.config = ViTConfig{.image_h = 12,
                          .image_w = 12,
                          .patch_h = 4,
                          .patch_w = 4,
                          .width = 8,
                          .depth = 2,
                          .heads = 2,
                          .mlp_width = 16,
                          .classes = 3};
  set_image_size(spec, 12, 12);
  return spec;
}

// A model with its weights, on the reference backend.
struct LoadedModel {
  explicit LoadedModel(const ModelSpec& spec, int64_t batch = 2)
      : image(graph.input("image", {batch, spec.config.channels(), spec.config.image_h(),
                                    spec.config.image_w()})),
        logits(model(Scope(graph), image, spec.config)),
        store(graph, *backend) {
    store.initialize(1);
  }

  std::vector<float> values(const std::string& name) {
    return store.read(static_cast<size_t>(store.index(name)));
  }
  std::vector<std::vector<float>> all_values() {
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < store.specs().size(); ++i) all.push_back(store.read(i));
    return all;
  }
  std::vector<float> forward(const std::vector<float>& pixels) {
    fuse(graph);
    Program program(graph, std::span(&logits, 1), store, {});
    program.upload(image, pixels.data());
    program.run();
    std::vector<float> out(static_cast<size_t>(logits.shape().numel()));
    program.download(out.data(), logits);
    return out;
  }

  std::unique_ptr<Backend> backend = make_backend({.device = "reference"});
  Graph graph;
  Value image, logits;
  ParamStore store;
};

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::isnan(a[i] - b[i]) ? INFINITY : std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace vitrum::test
