#include "vitrum/models/text.h"

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/vit.h"

namespace vitrum {
namespace {

// Its blocks are a ViT's.
ViTConfig blocks_of(const TextConfig& cfg) {
  return {.width = cfg.width,
          .depth = cfg.depth,
          .heads = cfg.heads,
          .mlp_width = cfg.mlp_width,
          .eps = cfg.eps,
          .act = cfg.act};
}

// Scores of later tokens become so small that nothing is left of them; not infinite, which a kernel
// that sees only such tokens at first could not take off again.
Value causal_mask(Scope s, int64_t tokens) {
  constexpr float kHidden = -1e9f;
  std::vector<float> mask(static_cast<size_t>(tokens * tokens), 0.f);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t u = t + 1; u < tokens; ++u) mask[static_cast<size_t>(t * tokens + u)] = kHidden;
  return s.graph().constant((s / "mask").path(), {1, tokens, tokens}, std::move(mask));
}

}  // namespace

Value text_features(Scope s, Value ids, Value ends, const TextConfig& cfg) {
  validate(cfg);
  const ViTConfig block = blocks_of(cfg);
  Value table = (s / "token_embedding")
                    .param("weight", {cfg.vocabulary, cfg.width}, Init::normal(0.02f), false);
  Value positions =
      s.param("pos_embed", {1, cfg.context, cfg.width}, Init::normal(0.01f), /*decay=*/false);
  Value x = add_tokens(lookup(s / "token_embedding", table, ids), {}, positions);
  const Value mask = cfg.causal ? causal_mask(s, cfg.context) : Value();
  for (int64_t i = 0; i < cfg.depth; ++i)
    x = vit_block(s / "blocks" / i, x, block, i, {.mask = mask});
  x = cfg.causal ? lookup(s / "end", x, ends) : take_token(x, cfg.context - 1);
  x = layer_norm(s / "norm", x, cfg.eps);
  return linear(s / "proj", x, cfg.space, {.bias = cfg.proj_bias});
}

void validate(const TextConfig& cfg) {
  if (cfg.width <= 0 || cfg.heads <= 0 || cfg.width % cfg.heads != 0)
    fail_usage("a text tower's width {} is not divisible by {} heads", cfg.width, cfg.heads);
  if (cfg.vocabulary <= 0 || cfg.context <= 0 || cfg.depth < 0 || cfg.mlp_width <= 0 ||
      cfg.space <= 0)
    fail_usage("a text tower of {} words, {} tokens and {} values is not possible", cfg.vocabulary,
               cfg.context, cfg.space);
}

}  // namespace vitrum
