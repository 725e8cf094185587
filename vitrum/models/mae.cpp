#include "vitrum/models/mae.h"

#include <algorithm>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/patches.h"

namespace vitrum {
namespace {

// A ViT of the same patches.
ViTConfig decoder_of(const ViTConfig& encoder, const MaeConfig& mae) {
  ViTConfig c{.image_h = encoder.image_h,
              .image_w = encoder.image_w,
              .patch_h = encoder.patch_h,
              .patch_w = encoder.patch_w,
              .channels = encoder.channels,
              .width = mae.width,
              .depth = mae.depth,
              .heads = mae.heads,
              .mlp_width = mae.mlp_width,
              .classes = 0,
              .eps = encoder.eps,
              .act = encoder.act};
  c.class_token = encoder.class_token, c.distilled = encoder.distilled;
  c.registers = encoder.registers;
  c.sincos_endpoint = false, c.floor_patches = encoder.floor_patches;
  return c;
}

int64_t patch_values(const ViTConfig& c) { return c.channels * c.patch_h * c.patch_w; }

ParamSpec* find_param(Graph& g, std::string_view name) {
  const auto it = std::ranges::find(g.params, name, &ParamSpec::name);
  return it == g.params.end() ? nullptr : &*it;
}

// Matrices start as the authors' (xavier, uniform), where the model has no start of its own; the
// class token as the mask token; positions are tables, and what pools by attention waits.
void start_as_authors(Graph& g, const ViTConfig& encoder) {
  for (ParamSpec& p : g.params) {
    const bool matrix = p.shape.rank() == 2 && p.name.ends_with(".weight");
    if (matrix && (encoder.init == InitStyle::kTimm || in_decoder(p.name)))
      p.init = Init::xavier(p.shape[1], p.shape[0]);
    if (p.name.starts_with("attn_pool.")) p.trainable = false;
  }
  ParamSpec* cls = find_param(g, "cls_token");
  if (cls && encoder.init == InitStyle::kTimm) cls->init = Init::normal(0.02f);
  if (ParamSpec* positions = find_param(g, "pos_embed")) {
    ViTConfig fixed = encoder;
    fixed.sincos_endpoint = false;
    positions->init = Init::given(sincos_table(fixed)), positions->trainable = false;
  }
}

// The patches that were not seen, as the authors flatten them: (B, M, P P C), f32 also where
// activations are not.
Value asked_pixels(Scope s, Value image, const ViTConfig& cfg, const MaeConfig& mae,
                   TokenChoice choice) {
  Graph& g = s.graph();
  const auto exactly = [&](Value v) { return g.info(v).exact = true, v; };
  choice.prefix = 0;
  Value x = exactly(patchify(whole_patches(image, cfg.patch_h, cfg.patch_w), cfg.patch_h,
                             cfg.patch_w, PatchOrder::kChannelLast));
  x = exactly(keep_tokens(s / "asked", x, choice));
  if (!mae.norm_pix) return x;
  // The authors divide by the deviation of n - 1: a LayerNorm by that of n, and a factor.
  const auto n = static_cast<double>(patch_values(cfg));
  const std::vector<float> factor(static_cast<size_t>(patch_values(cfg)),
                                  static_cast<float>(std::sqrt((n - 1) / n)));
  Value w = g.constant("asked.scale", {patch_values(cfg)}, factor);
  return exactly(g.emit("asked.norm", LayerNorm{static_cast<float>(1e-6 * (n - 1) / n)},
                        {x, w, Value()}, {x.shape()}));
}

}  // namespace

MaeConfig usual_decoder(const ViTConfig& encoder) {
  constexpr int64_t kHead = 32;  // values, as the paper's decoder has them
  MaeConfig mae;
  if (encoder.width >= mae.width) return mae;
  mae.width = encoder.width, mae.depth = 4, mae.mlp_width = 4 * mae.width;
  mae.heads = mae.width % kHead == 0 ? mae.width / kHead : encoder.heads;
  return mae;
}

bool in_decoder(std::string_view param) {
  return param.starts_with("decoder_") || param == "mask_token";
}

void validate(const MaeConfig& mae, const ViTConfig& encoder) {
  validate(encoder);
  if (encoder.rope != Rope::kNone || encoder.distance_bias != DistanceBias::kNone)
    fail_usage(
        "masked pretraining leaves patches out, which a model whose attention has positions of its "
        "own (rotary, or by distance) cannot do; choose another ViT");
  if (patch_values(encoder) < 2)
    fail_usage("patches of one value cannot be pretrained on; choose a larger patch");
  if (mae.width <= 0 || mae.width % 4 != 0)
    fail_usage("decoder_width {}: expected a multiple of 4", mae.width);
  if (mae.heads <= 0 || mae.width % mae.heads != 0)
    fail_usage("decoder_width {} is not divisible by {} heads; set decoder_heads", mae.width,
               mae.heads);
  if (encoder.learned_positions && !encoder.sincos_positions && encoder.width % 4 != 0)
    fail_usage("2-D sine-cosine positions need a width divisible by 4, not {}", encoder.width);
  const auto kept =
      static_cast<int64_t>(static_cast<double>(encoder.patches()) * (1 - mae.mask_ratio));
  if (encoder.patches() - std::max<int64_t>(1, kept) < 1)
    fail_usage("mask_ratio {} of {} patches leaves none to ask for", mae.mask_ratio,
               encoder.patches());
}

// What the decoder says of the patches that were not seen, (B, M, P P C); `choice` becomes theirs.
static Value predict(Scope s, Value image, const ViTConfig& encoder, const MaeConfig& mae,
                     TokenChoice& choice) {
  validate(mae, encoder);
  Graph& g = s.graph();
  const ViTConfig decoder = decoder_of(encoder, mae);
  choice = choose_tokens(g, encoder.prefix_tokens(), encoder.patches(),
                         static_cast<float>(mae.mask_ratio));
  Value x = vit_encode(s, image, encoder, choice);
  x = linear(s / "decoder_embed", x, mae.width);
  Value fill = s.param("mask_token", {1, 1, mae.width}, Init::normal(0.02f), /*decay=*/false);
  x = place_tokens(s / "decoder_tokens", x, encoder.tokens(), choice, fill);
  Value positions = s.param("decoder_pos_embed", {1, encoder.tokens(), mae.width},
                            Init::given(sincos_table(decoder)), /*decay=*/false);
  find_param(g, "decoder_pos_embed")->trainable = false;
  x = add_tokens(x, {}, positions);
  for (int64_t i = 0; i < mae.depth; ++i) x = vit_block(s / "decoder_blocks" / i, x, decoder, i);
  x = layer_norm(s / "decoder_norm", x, encoder.eps);
  // What is not asked for is not predicted.
  choice.dropped = true;
  x = linear(s / "decoder_pred", keep_tokens(s / "decoder_asked", x, choice),
             patch_values(encoder));
  start_as_authors(g, encoder);
  return x;
}

Value mae_loss(Scope s, const MaeInputs& in, const ViTConfig& encoder, const MaeConfig& mae) {
  TokenChoice choice;
  const Value x = predict(s, in.image, encoder, mae, choice);
  const Value asked = asked_pixels(s, in.asked, encoder, mae, choice);
  return cross_entropy(x, asked, in.weight, LossForm{.kind = LossKind::kSquare});
}

MaeGuess mae_guess(Scope s, Value image, const ViTConfig& encoder, const MaeConfig& mae) {
  TokenChoice choice;
  const Value x = predict(s, image, encoder, mae, choice);
  choice.prefix = 0;
  const Shape marks = {x.dim(0), x.dim(1), 1};
  const Value ones = s.graph().constant(
      "hidden.ones", marks, std::vector<float>(static_cast<size_t>(marks.numel()), 1.f));
  return {place_tokens(s / "guess", x, encoder.patches(), choice, Value()),
          place_tokens(s / "hidden", ones, encoder.patches(), choice, Value())};
}

std::vector<ParamSpec> decoder_params(const ViTConfig& encoder, const MaeConfig& mae) {
  Graph g(Mode::kInference);
  TokenChoice choice;
  predict(Scope(g), g.input("image", {1, encoder.channels, encoder.image_h, encoder.image_w}),
          encoder, mae, choice);
  std::erase_if(g.params, [](const ParamSpec& p) { return !in_decoder(p.name); });
  return g.params;
}

}  // namespace vitrum
