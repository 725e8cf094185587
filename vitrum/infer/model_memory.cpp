#include "vitrum/infer/model_memory.h"

#include <algorithm>
#include <array>

#include "vitrum/graph/functional.h"
#include "vitrum/graph/unread_tokens.h"
#include "vitrum/infer/model_program.h"

namespace vitrum {
namespace {

int64_t bytes_of(const ValueInfo& v) {
  return v.shape.numel() * static_cast<int64_t>(size_of(v.dtype));
}

ModelMemory plan(Graph& g, std::span<const Value> outputs, DType compute) {
  assign_dtypes(g, compute, outputs);
  drop_dead(g, outputs);
  ModelMemory memory{.arena = plan_memory(g, outputs).bytes};
  for (const ValueInfo& v : g.values)
    if (v.role == Role::kInput || v.role == Role::kConst) memory.inputs += bytes_of(v);
  return memory;
}

}  // namespace

ModelMemory inference_memory(const ModelSpec& model, const MemoryOptions& options) {
  Graph g(Mode::kInference);
  const TracedModel traced = trace(g, model, options.batch);
  const std::array outputs = {traced.features, traced.logits};
  const std::vector<std::string> few = partly_read_layers(g, outputs);
  const auto is_few = [&](const std::string& layer) {
    return std::ranges::find(few, layer) != few.end();
  };
  drop_unread_tokens(g, outputs);
  fuse(g);
  if (options.compute == DType::kI8) quantize(g);
  ActivationScales scales;
  if (options.compute == DType::kE4M3) quantize_e4m3(g, nullptr, scales, is_few);
  ModelMemory memory = plan(g, outputs, options.compute);
  // Weights are kept in the precision they are read in; those of eight bits are copies.
  for (const ValueInfo& v : g.values)
    if (v.role == Role::kParam) memory.weights += bytes_of(v);
  for (const Node& node : g.nodes)
    if (std::holds_alternative<QLinear>(node.op)) {
      const ValueInfo& w = g.values[static_cast<size_t>(node.in[QLinear::kWeight])];
      memory.weights -= bytes_of(w) - w.shape.numel();
    }
  return memory;
}

ModelMemory training_memory(const ModelSpec& model, const MemoryOptions& options) {
  Graph g(Mode::kTraining);
  const TracedModel traced = trace(g, model, options.batch);
  if (options.freeze) options.freeze(g);
  const Value target = g.input("target", {options.batch}, DType::kI32);
  const Value weight = g.input("weight", {options.batch}, DType::kF32, /*exact=*/true);
  const Value loss = cross_entropy(traced.logits, target, weight);
  fuse(g);
  differentiate(g, loss, options.recompute);
  const std::array outputs = {loss, traced.logits};
  ModelMemory memory = plan(g, outputs, options.compute);
  // Master copy, gradient and two moments of every parameter, all f32.
  const int64_t each = 4 * 4 + (options.compute == DType::kBF16 ? 2 : 0);
  for (const ParamSpec& param : g.params) memory.weights += each * param.shape.numel();
  return memory;
}

}  // namespace vitrum
