// For tools/check/check_swin.py: dump_gradients MODEL IMAGES.npy LABELS.npy OUT.safetensors [ARCH]
// writes the gradients of the mean cross-entropy, under our names, and the losses of ten steps of
// SGD.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "tests/support/training_graph.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

constexpr float kLearningRate = 0.01f;

void step(ParamStore& store) {
  for (size_t i = 0; i < store.specs().size(); ++i) {
    if (!store.has_room(i, Arena::kGrad)) continue;
    std::vector<float> values = store.read(i), gradient = store.read(i, Arena::kGrad);
    for (size_t k = 0; k < values.size(); ++k) values[k] -= kLearningRate * gradient[k];
    store.write(i, values);
  }
}

void clear_gradients(ParamStore& store) {
  const TensorView all = store.arena(Arena::kGrad);
  std::fill_n(all.f32(), all.shape.numel(), 0.f);
}

void run(const std::string& model, const std::string& images, const std::string& labels,
         const std::string& out, const std::string& arch) {
  ModelSpec spec = resolve_model(model, arch);
  spec.config.set_drop_path(0);
  const NpyArray image = read_npy(images), label = read_npy(labels);
  set_image_size(spec, image.shape[2], image.shape[3]);
  const int64_t batch = image.shape[0];
  test::TrainingGraph graph(spec.config, batch);
  const std::unique_ptr<Backend> backend = make_backend({.device = "cpu"});
  ParamStore store(graph.g, *backend);
  load_weights(model, spec, store);
  Program program = graph.compile(store);
  const std::vector<int32_t> targets(label.values.begin(), label.values.end());
  const std::vector<float> weights(static_cast<size_t>(batch), 1.f / static_cast<float>(batch));
  program.upload(graph.image, image.values.data());
  program.upload(graph.target, targets.data()), program.upload(graph.weight, weights.data());

  std::vector<std::vector<float>> gradients;
  std::vector<float> losses;
  for (int i = 0; i < 10; ++i) {
    clear_gradients(store);
    program.run();
    losses.push_back(static_cast<float>(program.read_scalar(graph.loss)));
    for (size_t p = 0; i == 0 && p < store.specs().size(); ++p)
      gradients.push_back(store.has_room(p, Arena::kGrad)
                              ? store.read(p, Arena::kGrad)
                              : std::vector<float>(store.read(p).size()));
    step(store);
  }
  std::vector<NamedTensor> tensors = {{"losses", {losses.data(), {10}, DType::kF32}}};
  for (size_t p = 0; p < gradients.size(); ++p)
    tensors.push_back(
        {store.specs()[p].name, {gradients[p].data(), store.specs()[p].shape, DType::kF32}});
  write_safetensors(out, tensors, {});
}

}  // namespace
}  // namespace vitrum

int main(int argc, char** argv) {
  if (argc < 5) return fmt::print("usage: dump_gradients MODEL IMAGES LABELS OUT [ARCH]\n"), 2;
  try {
    vitrum::run(argv[1], argv[2], argv[3], argv[4], argc > 5 ? argv[5] : "");
  } catch (const std::exception& e) {
    return fmt::print(stderr, "{}\n", e.what()), 1;
  }
}
