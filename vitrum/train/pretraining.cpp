#include "vitrum/train/pretraining.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/weights/mae_decoder.h"

namespace vitrum {
namespace {

// Steps of training do not come so far: evaluations have draws of their own.
constexpr uint32_t kEvaluationSteps = 0x8000;

Program compile(Graph& g, Value loss, ParamStore& store, Arena weights) {
  fuse(g);
  const std::array outputs = {loss};
  return Program(g, outputs, store, {.compute = DType::kF32, .weights = weights});
}

}  // namespace

MaeConfig mae_for(const Recipe& recipe, const ModelSpec& model) {
  const auto* vit = model.config.as<ViTConfig>();
  if (!vit)
    fail_usage("task mae: {} needs all of its patches; only a ViT can be pretrained like that",
               model.architecture);
  MaeConfig mae = usual_decoder(*vit);
  if (!recipe.weights.empty()) mae = stored_decoder(recipe.weights).value_or(mae);
  mae.mask_ratio = recipe.mask_ratio, mae.norm_pix = recipe.norm_pix;
  if (recipe.decoder_width.value_or(mae.width) != mae.width) {
    constexpr int64_t kHead = 32;
    mae.width = *recipe.decoder_width, mae.mlp_width = 4 * mae.width;
    if (mae.width % kHead == 0) mae.heads = mae.width / kHead;
  }
  mae.depth = recipe.decoder_depth.value_or(mae.depth);
  mae.heads = recipe.decoder_heads.value_or(mae.heads);
  validate(mae, *vit);
  return mae;
}

std::string load_stored_decoder(const Recipe& recipe, const ModelSpec& model, ParamStore& store) {
  std::optional<MaeConfig> stored = stored_decoder(recipe.weights);
  const MaeConfig wanted = mae_for(recipe, model);
  if (!stored) return "new decoder";
  stored->mask_ratio = wanted.mask_ratio, stored->norm_pix = wanted.norm_pix;
  if (*stored != wanted) return "new decoder of another size";
  load_decoder(recipe.weights, model, store);
  return "decoder as stored";
}

TracedMae trace_mae(Graph& g, const ModelSpec& model, const MaeConfig& mae, Value weight) {
  const ViTConfig& c = *model.config.as<ViTConfig>();
  const Value image =
      g.input("image", {weight.dim(0), c.channels, c.image_h, c.image_w}, DType::kU8);
  const auto normalized = [&] {
    return normalize(image, model.preprocess.mean, model.preprocess.std);
  };
  const Value seen = normalized();
  const Value asked = normalized();
  g.info(asked).exact = true;
  return {image, mae_loss(Scope(g), {seen, asked, weight}, c, mae)};
}

MaskedEvaluator::MaskedEvaluator(const Recipe& recipe, const ModelSpec& model, ParamStore& store,
                                 int64_t batch, Arena weights)
    : seed_(static_cast<uint64_t>(recipe.seed)),
      weight_(graph_.input("weight", {batch}, DType::kF32, /*exact=*/true)),
      traced_(trace_mae(graph_, model, mae_for(recipe, model), weight_)),
      program_(compile(graph_, traced_.loss, store, weights)),
      weights_(static_cast<size_t>(batch)) {}

MaskedEvaluator::Sum MaskedEvaluator::loss_of(const Batch& batch, int64_t index) {
  const auto count = static_cast<ptrdiff_t>(batch.count);
  std::fill(weights_.begin(), weights_.begin() + count, 1.f);
  std::fill(weights_.begin() + count, weights_.end(), 0.f);
  const RandomState random{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32),
                           static_cast<uint32_t>(index), kEvaluationSteps};
  program_.upload(weight_, weights_.data());
  program_.upload(graph_.rng(), &random);
  if (images_)
    images_->upload(batch), images_->program().run();
  else
    program_.upload(traced_.image, batch.pixels().data());
  program_.run();
  return {program_.read_scalar(traced_.loss), batch.count};
}

// A round is a batch of every process.
Evaluation MaskedEvaluator::run(Loader& loader, const KeepGoing& keep_going, Communicator* comm) {
  const int64_t ranks = comm ? comm->size() : 1, own = comm ? comm->rank() : 0;
  Evaluation all;
  Batch batch;
  loader.start(0);
  for (int64_t first = 0; keep_going(std::min(first, loader.batches())) && first < loader.batches();
       first += ranks) {
    std::vector<Sum> sums(static_cast<size_t>(ranks));
    if (loader.next(batch)) sums[static_cast<size_t>(own)] = loss_of(batch, first + own);
    if (comm) {
      std::vector<std::span<std::byte>> parts;
      for (Sum& sum : sums) parts.push_back(std::as_writable_bytes(std::span(&sum, 1)));
      all_gather(*comm, parts);
    }
    for (const Sum& sum : sums) all.loss += sum.loss, all.images += sum.images;
  }
  all.loss /= static_cast<double>(std::max<int64_t>(all.images, 1));
  return all;
}

}  // namespace vitrum
