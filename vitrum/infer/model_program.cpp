#include "vitrum/infer/model_program.h"

#include <array>

#include "vitrum/graph/functional.h"

namespace vitrum {

TracedModel trace(Graph& g, const ModelSpec& model, int64_t batch) {
  const ModelConfig& c = model.config;
  const Value image = g.input("image", {batch, c.channels(), c.image_h(), c.image_w()}, DType::kU8);
  const Value x = normalize(image, model.preprocess.mean, model.preprocess.std);
  const ModelOutput out = model_output(Scope(g), x, c);
  return {image, out.features, out.logits, out.cls, out.dist};
}

Preprocess preprocess_of(const ModelSpec& model) {
  const Preprocessing& p = model.preprocess;
  return {.channels = static_cast<int>(model.config.channels()),
          .height = static_cast<int>(model.config.image_h()),
          .width = static_cast<int>(model.config.image_w()),
          .interpolation = parse_filter(p.interpolation),
          .crop_pct = p.crop_pct,
          .crop_mode = p.crop_mode == "squash" ? CropMode::kSquash : CropMode::kCenter,
          .resize = static_cast<int>(p.resize),
          .crop_floor = p.crop_floor};
}

ModelProgram::ModelProgram(const ModelSpec& model, ParamStore& store, int64_t batch,
                           const CompileOptions& options)
    : batch_(batch), model_(trace(graph_, model, batch)), program_(compile(store, options)) {}

Program ModelProgram::compile(ParamStore& store, const CompileOptions& options) {
  fuse(graph_);
  const std::array outputs = {model_.features, model_.logits};
  return Program(graph_, outputs, store, options);
}

void ModelProgram::run(const uint8_t* pixels) {
  program_.upload(model_.image, pixels);
  program_.run();
}

}  // namespace vitrum
