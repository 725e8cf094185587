#include "vitrum/infer/text_encoder.h"

#include <algorithm>
#include <array>
#include <bit>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/graph/passes.h"
#include "vitrum/infer/text_cache.h"
#include "vitrum/runtime/program.h"

namespace vitrum {
namespace {

constexpr int64_t kMostAtOnce = 16;  // texts; few tokens each, so that this keeps any device busy

struct TracedText {
  Value ids, ends, vectors;
};

TracedText trace_text(Graph& g, const TextConfig& config, int64_t batch) {
  const Value ids = g.input("ids", {batch, config.context}, DType::kI32);
  const Value ends = config.causal ? g.input("ends", {batch}, DType::kI32) : Value();
  return {ids, ends, text_features(Scope(g, "text"), ids, ends, config)};
}

}  // namespace

// The tower for one number of texts.
struct TextEncoder::TextProgram {
  TextProgram(const TextSpec& spec, ParamStore& store, int64_t batch, DType compute)
      : batch(batch),
        traced(trace_text(graph, spec.config, batch)),
        program(compile(store, compute)) {}
  Program compile(ParamStore& store, DType compute) {
    fuse(graph);
    const std::array outputs = {traced.vectors};
    return Program(graph, outputs, store, {.compute = compute});
  }

  int64_t batch;
  Graph graph{Mode::kInference};
  TracedText traced;
  Program program;
};

TextEncoder::TextEncoder(const std::string& model, SharedDevice& device, DType compute)
    : model_(model),
      device_(device),
      compute_(compute),
      spec_(resolve_text_tower(model)),
      tokenizer_(open_tokenizer(model)) {
  check_tokenizer(model);
  trace_text(parameters_, spec_.config, 1);
  const SharedDevice::Turn turn(device_);
  weights_ = open_text_weights(model, parameters_, device_.backend());
}

// Numbers are rows of the tower's table.
void TextEncoder::check_tokenizer(const std::string& model) const {
  if (tokenizer_->vocabulary() > spec_.config.vocabulary)
    fail_input("{}: the tokenizer has numbers up to {}, the text tower {} words", model,
               tokenizer_->vocabulary() - 1, spec_.config.vocabulary);
}

std::vector<float> TextEncoder::encode(std::span<const std::string> texts) {
  const TextConfig& c = spec_.config;
  const auto count = static_cast<int64_t>(texts.size());
  std::vector<TokenRow> rows;
  for (const std::string& text : texts)
    rows.push_back(tokenizer_->encode(spec_.canonical ? canonical(text) : text, c.context));
  std::vector<float> vectors(static_cast<size_t>(count * c.space));
  const SharedDevice::Turn turn(device_);
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  TextProgram tower(spec_, weights_->store(), std::min(kMostAtOnce, whole), compute_);
  std::vector<float> out(static_cast<size_t>(tower.batch * c.space));
  for (int64_t first = 0; first < count; first += tower.batch) {
    std::vector<int32_t> ids, ends;
    for (int64_t i = 0; i < tower.batch; ++i) {  // what is left over computes the last one again
      const TokenRow& row = rows[static_cast<size_t>(std::min(first + i, count - 1))];
      ids.insert(ids.end(), row.ids.begin(), row.ids.end());
      ends.push_back(static_cast<int32_t>(i * c.context + row.end));
    }
    tower.program.upload(tower.traced.ids, ids.data());
    if (c.causal) tower.program.upload(tower.traced.ends, ends.data());
    tower.program.run();
    tower.program.download(out.data(), tower.traced.vectors);
    const int64_t here = std::min(tower.batch, count - first);
    std::copy_n(out.begin(), here * c.space, vectors.begin() + first * c.space);
  }
  weights_->check_intact();
  if (!all_finite(vectors)) {
    const std::string which = weights_->not_finite();
    fail_input("{}: the text tower gives numbers that are not finite{}", model_,
               which.empty() ? "" : "; so are weights of " + which);
  }
  return vectors;
}

std::vector<float> text_vectors(const std::string& model, SharedDevice& device, DType compute,
                                std::span<const std::string> texts) {
  const TextCache cache(model, device.backend().name(), compute, texts);
  const auto width = static_cast<size_t>(resolve_text_tower(model).config.space);
  std::vector<float> vectors = cache.read(texts.size() * width);
  if (!vectors.empty()) return vectors;
  vectors = TextEncoder(model, device, compute).encode(texts);
  cache.write(vectors, texts.size());
  return vectors;
}

}  // namespace vitrum
