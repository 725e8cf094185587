#include "tests/support/tiny_model.h"

#include <algorithm>

#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::test {

ModelSpec tiny_rgb_model() {
  ModelSpec spec{.architecture = "vit_tiny_patch16_224"};
  spec.config = ViTConfig{.image_h = 32,
                          .image_w = 32,
                          .patch_h = 8,
                          .patch_w = 8,
                          .width = 48,
                          .depth = 2,
                          .heads = 3,
                          .mlp_width = 96,
                          .classes = 7};
  spec.preprocess.height = spec.preprocess.width = 32;
  spec.preprocess.crop_pct = 0.9;
  spec.preprocess.mean = spec.preprocess.std = {0.5f, 0.5f, 0.5f};
  spec.labels = {"tench, Tinca tinca", "goldfish",  "crane, bird",     "Golden_Retriever",
                 "crane, machine",     "7 of nine", "pizza, pizza pie"};
  spec.class_ids = {"n01440764", "n01443537", "n02012849", "n02099601",
                    "n03126707", "n00000000", "n07873807"};
  return spec;
}

void write_tiny_model(const std::string& dir, const ModelSpec& spec, DType dtype) {
  const auto backend = make_backend({.device = "reference"});
  Graph g;
  trace(g, spec, 1);
  ParamStore store(g, *backend);
  store.initialize(7);
  // A head that starts at N(0, 0.02) hardly prefers any class.
  for (const char* name : {"head.weight", "patch_embed.proj.weight"}) {
    const auto param = static_cast<size_t>(store.index(name));
    std::vector<float> values = store.read(param);
    for (float& x : values) x *= 20;
    store.write(param, values);
  }
  save_model_dir(dir, spec, store);
  if (dtype == DType::kF32) return;
  const std::string path = dir + "/model.safetensors";
  std::vector<std::vector<uint16_t>> narrow;
  std::vector<NamedTensor> tensors;
  const SafetensorsFile file(path);
  for (const TensorInfo& t : file.tensors()) {
    std::vector<float> values(t.bytes / sizeof(float));
    file.copy_to(t, {values.data(), t.shape, DType::kF32});
    auto& to = narrow.emplace_back(values.size());
    std::transform(values.begin(), values.end(), to.begin(), to_bf16);
    tensors.push_back({t.name, {to.data(), t.shape, DType::kBF16}});
  }
  write_safetensors(path, tensors);
}

}  // namespace vitrum::test
