#include "vitrum/infer/model_program.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/graph/taps.h"
#include "vitrum/graph/unread_tokens.h"
#include "vitrum/infer/prepare.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {

namespace {

bool holds(const std::vector<ValueId>& ids, Value v) {
  return std::find(ids.begin(), ids.end(), v.id()) != ids.end();
}

// Makes `v` an input; what computed it is dead, and dropped with other dead nodes.
void cut(Graph& g, Value v) {
  std::erase_if(g.nodes, [&](const Node& node) { return holds(node.out, v); });
  g.info(v).role = Role::kInput;
}

}  // namespace

TracedModel trace(Graph& g, const ModelSpec& model, int64_t batch, InputStage from, bool mixed) {
  const ModelConfig& c = model.config;
  g.lora = model.lora;
  const bool normalized = from == InputStage::kNormalized;
  const Value image = g.input("image", {batch, c.channels(), c.image_h(), c.image_w()},
                              normalized ? DType::kF32 : DType::kU8);
  Value mix;
  if (mixed) mix = g.input("mix", {batch, 6}, DType::kF32, /*exact=*/true);
  const Value x = normalized ? image
                             : normalize(mixed ? mix_pixels(image, mix) : image,
                                         model.preprocess.mean, model.preprocess.std);
  const ModelOutput out = model_output(Scope(g), x, c);
  if (from != InputStage::kFeatures)
    return {image, out.features, out.logits, out.cls, out.dist, mix};
  cut(g, out.features);
  return {out.features, out.features, out.logits, out.cls, out.dist};
}

bool head_sees_features_only(const ModelSpec& model) {
  Graph g(Mode::kInference);
  const TracedModel traced = trace(g, model, 1, InputStage::kFeatures);
  const std::array outputs = {traced.logits};
  drop_dead(g, outputs);
  return std::none_of(g.nodes.begin(), g.nodes.end(), [&](const Node& node) {
    return std::any_of(node.in.begin(), node.in.end(), [&](ValueId id) {
      return id != kAbsent && id != traced.image.id() &&
             g.values[static_cast<size_t>(id)].role == Role::kInput;
    });
  });
}

std::vector<std::string> block_layers(const ModelSpec& model, const std::string& name) {
  Graph g(Mode::kInference);
  trace(g, model, 1);
  std::vector<std::string> layers = quantize(g);
  if (layers.empty())
    fail_usage("{} has no blocks with linear layers: int8 has nothing to round", name);
  return layers;
}

std::vector<std::string> e4m3_layers(const ModelSpec& model, const std::string& name) {
  Graph g(Mode::kInference);
  const TracedModel traced = trace(g, model, 1);
  const std::array outputs = {traced.features, traced.logits};
  const std::vector<std::string> few = partly_read_layers(g, outputs);
  ActivationScales scales;
  std::vector<std::string> layers = quantize_e4m3(
      g, nullptr, scales,
      [&](const std::string& layer) { return std::ranges::find(few, layer) != few.end(); });
  if (layers.empty())
    fail_usage(
        "{} has no layers that fp8 could round: those behind a norm in its blocks, of widths that "
        "32 "
        "divides",
        name);
  return layers;
}

Preprocess preprocess_of(const ModelSpec& model) {
  const Preprocessing& p = model.preprocess;
  std::array<uint8_t, 3> border = {};  // the mean: what the model sees as zero
  for (size_t i = 0; i < std::min(border.size(), p.mean.size()); ++i)
    border[i] = static_cast<uint8_t>(std::nearbyint(255 * std::clamp(p.mean[i], 0.f, 1.f)));
  return {.channels = static_cast<int>(model.config.channels()),
          .height = static_cast<int>(model.config.image_h()),
          .width = static_cast<int>(model.config.image_w()),
          .interpolation = parse_filter(p.interpolation),
          .crop_pct = p.crop_pct,
          .crop_mode = p.crop_mode == "squash"   ? CropMode::kSquash
                       : p.crop_mode == "border" ? CropMode::kBorder
                                                 : CropMode::kCenter,
          .resize = static_cast<int>(p.resize),
          .crop_floor = p.crop_floor,
          .border = border};
}

int64_t images_at_once(const ModelSpec& model, const Backend& backend, DType compute,
                       int64_t batch) {
  Graph g(Mode::kInference);
  trace(g, model, 1);
  return images_at_once(multiply_adds(g), backend, compute, batch);
}

int64_t images_at_once(int64_t macs, const Backend& backend, DType compute, int64_t batch) {
  const int64_t images =
      std::max<int64_t>(1, backend.enough_work(compute) / std::max<int64_t>(1, macs));
  return std::min(batch, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(images))));
}

ModelProgram::ModelProgram(const ModelSpec& model, ParamStore& store, int64_t batch,
                           const CompileOptions& options, InputStage from,
                           std::span<const std::string> taps)
    : batch_(batch),
      model_(trace(graph_, model, batch, from)),
      taps_(tap(graph_, taps)),
      program_(compile(store, options)) {}

Program ModelProgram::compile(ParamStore& store, CompileOptions options) {
  options.taps = taps_;
  const std::array outputs = {model_.features, model_.logits};
  prepare(graph_, outputs, store.backend(), options);
  fuse(graph_, taps_);
  return Program(graph_, outputs, store, options);
}

void ModelProgram::upload(const void* images) { program_.upload(model_.image, images); }

void ModelProgram::upload_image(size_t i, const void* pixels) {
  program_.upload_part(model_.image, i, pixels);
}

void ModelProgram::read_tap(size_t i, float* to) const {
  const TensorView view = program_[taps_[i]];
  if (view.dtype != DType::kBF16) return program_.download(to, taps_[i]);
  std::vector<uint16_t> narrow(static_cast<size_t>(view.shape.numel()));
  program_.download(narrow.data(), taps_[i]);
  std::transform(narrow.begin(), narrow.end(), to, from_bf16);
}

}  // namespace vitrum
