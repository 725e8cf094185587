// The weights of EVA-02: timm's, and those of its authors. transformers has no such model.
#include "vitrum/core/error.h"
#include "vitrum/weights/families/eva.h"

namespace vitrum {
namespace {

using Names = std::string_view;

// Files of pretraining have the norm of tokens, which is that of their mean behind it.
#define AUTHORS                                                              \
  {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, Layout::kConv}, \
      {"blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.{q_bias,-,v_bias}"},     \
      {"blocks.{i}.attn.norm", "blocks.{i}.attn.inner_attn_ln"},             \
      {"blocks.{i}.mlp.norm", "blocks.{i}.mlp.ffn_ln"},                      \
      {"blocks.{i}.mlp.fc2", "blocks.{i}.mlp.w3"}, {                         \
    "fc_norm", "fc_norm", "norm"                                             \
  }
constexpr NameRule kAuthors[] = {AUTHORS, {"blocks.{i}.mlp.fc1", "blocks.{i}.mlp.w12"}, {"", ""}};
constexpr NameRule kAuthorsApart[] = {
    AUTHORS,
    {"blocks.{i}.attn.qkv.weight", "blocks.{i}.attn.{q_proj,k_proj,v_proj}.weight"},
    {"blocks.{i}.mlp.fc1", "blocks.{i}.mlp.{w1,w2}"},
    {"", ""}};
#undef AUTHORS

constexpr Names kIgnored[] = {"rope.", "*.rope.freqs_cos", "*.rope.freqs_sin", "mask_token",
                              "lm_head."};
constexpr Names kAuthorsProbes[] = {"patch_embed.proj.weight",
                                    "cls_token",
                                    "pos_embed",
                                    "blocks.0.norm1.weight",
                                    "blocks.0.attn.qkv.weight",
                                    "blocks.0.attn.qkv.bias",
                                    "blocks.0.attn.proj.weight",
                                    "blocks.0.mlp.fc1.weight",
                                    "blocks.0.mlp.fc2.weight",
                                    "fc_norm.weight"};

// kApart: q, k and v, and the halves of fc1, are tensors of their own; B and L, which have a norm
// before fc2.
template <bool kApart>
struct Eva02 : EvaFiles {
  static constexpr Dialect kDialects[] = {
      {"vit",
       "timm",
       "timm",
       kApart ? std::span<const NameRule>(kEvaApart) : kEvaRules,
       kTimmIgnored,
       {},
       kEvaProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kSilu},
      {"vit",
       "eva",
       "BAAI",
       kApart ? std::span<const NameRule>(kAuthorsApart) : kAuthors,
       kIgnored,
       {},
       kAuthorsProbes,
       PositionRule::kBicubicAntialias,
       1e-6f,
       Act::kSilu,
       /*original=*/true},
  };
  static constexpr std::span<const std::string_view> kHf = {};

  static bool holds(const ViTConfig& c) {
    return c.rope == Rope::kEva && c.gated && c.mlp_norm == kApart && holds_k_bias(c);
  }

  // The dialect that a file is found to be of may be a relative's with the same names.
  static void as_published(const Dialect&, ViTConfig& c, Preprocessing&) {
    c.eps = 1e-6f, c.act = Act::kSilu;
  }
  static void require_plain(const Dialect&, const ViTConfig&) {}

  // transformers has none: no dialect leads here.
  static void read_hf(const JsonKeys&, ViTConfig&) { refuse(); }
  static std::string write_hf(const ViTConfig&, const std::string&) { refuse(); }
  static std::string_view hf_base(const ViTConfig&) { return {}; }
  static void read_preprocessor(const ConfigText&, ModelSpec&) { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail("transformers has no EVA-02"); }
};

}  // namespace

extern constinit const WeightFamily kEva02Weights = family<Eva02<false>>("vit");
extern constinit const WeightFamily kEva02ApartWeights = family<Eva02<true>>("vit");

}  // namespace vitrum
