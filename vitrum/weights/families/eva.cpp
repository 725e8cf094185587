#include "vitrum/weights/families/eva.h"

#include <nlohmann/json.hpp>

#include "vitrum/weights/families/timm_args.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

const char* text(bool b) { return b ? "true" : "false"; }

bool is_dinov3(const ViTConfig& c) { return c.rope == Rope::kDinov3; }

// q, k and v in one tensor.
bool fused(const ViTConfig& c) { return is_dinov3(c) || !c.mlp_norm; }

// What of the class's arguments is another model; every architecture has one value.
std::vector<JsonKeys::Fixed> fixed_args(const ViTConfig& c) {
  return {{"qkv_fused", text(fused(c))},
          {"swiglu_mlp", text(c.gated)},
          {"scale_mlp", text(c.mlp_norm)},
          {"scale_attn_inner", text(c.attn_norm)},
          {"use_rot_pos_emb", "true"},
          {"use_abs_pos_emb", text(c.learned_positions)},
          {"rope_type", is_dinov3(c) ? "\"dinov3\"" : "\"cat\""},
          {"rope_rotate_half", text(is_dinov3(c))},
          {"rope_grid_indexing", "\"ij\""},
          {"attn_type", "\"eva\""},
          {"qk_norm", "false"},
          {"use_post_norm", "false"},
          {"use_pre_transformer_norm", "false"},
          {"no_embed_class", "false"}};
}

// Whether timm's class computes the same. Its eps is 1e-5 for DINOv3 and 1e-6 else.
bool timm_has(const ViTConfig& c) {
  const bool eps = is_dinov3(c) ? c.eps == 1e-5f : c.eps <= 1e-6f;
  const bool act = c.act == (c.gated ? Act::kSilu : Act::kGelu);
  return c.pre_norm && eps && act && c.norm_bias && c.head_bias && c.proj_bias && c.mlp_bias &&
         c.patch_bias && !c.norm_pre && !c.distilled && !c.sincos_positions && !c.rope_bf16 &&
         c.patch_order == PatchOrder::kChannelFirst && c.prefix_positions &&
         c.distance_bias == DistanceBias::kNone && c.pool != ViTPool::kTokenAndMean &&
         (c.registers == 0 || !c.learned_positions);
}

std::string timm_name(const ModelSpec& spec, const ViTConfig& c) {
  if (!timm_has(c)) return "vitrum_vit";
  const char* part = is_dinov3(c) ? "dinov3" : "eva02";
  if (spec.architecture.find(part) != std::string::npos) return spec.architecture;
  return is_dinov3(c) ? "vit_base_patch16_dinov3" : "eva02_base_patch14_224";
}

}  // namespace

void EvaFiles::read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c) {
  args.only(timm_args({"num_reg_tokens", "rope_temperature", "ref_feat_shape", "use_fc_norm",
                       "swiglu_align_to"}),
            fixed_args(c));
  const double ratio =
      is_dinov3(c) ? static_cast<double>(c.mlp_width) / static_cast<double>(c.width) : 4.0 * 2 / 3;
  read_timm_sizes(args, c, ratio);
  const int64_t align = args.integer("swiglu_align_to", is_dinov3(c) ? 8 : 1, {0, 1 << 16});
  if (c.gated && align > 1) c.mlp_width = (c.mlp_width + align - 1) / align * align;
  c.registers = args.integer("num_reg_tokens", c.registers, {0, 1024});
  c.rope_theta = static_cast<int64_t>(
      args.number("rope_temperature", static_cast<double>(c.rope_theta), 1, 1e9));
  c.rope_grid = args.pair("ref_feat_shape", {c.rope_grid, c.rope_grid}, kSides).first;
  const bool mean = timm_pools_mean(top, args, c.pool != ViTPool::kToken),
             normed = !args.boolean("use_fc_norm", !is_dinov3(c));
  c.pool = !mean ? ViTPool::kToken : normed ? ViTPool::kNormedMean : ViTPool::kMean;
}

TimmConfig EvaFiles::write_timm(const ModelSpec& spec, const ViTConfig& c) {
  Json args = timm_sizes(c);
  const bool mean = c.pool == ViTPool::kMean || c.pool == ViTPool::kNormedMean;
  args["global_pool"] = mean ? "avg" : "token";
  args["qkv_fused"] = fused(c), args["swiglu_mlp"] = c.gated;
  // Any number has the two halves of fc1 stored apart.
  if (c.gated && is_dinov3(c)) args["swiglu_align_to"] = 1;
  args["scale_mlp"] = c.mlp_norm, args["scale_attn_inner"] = c.attn_norm;
  args["num_reg_tokens"] = c.registers;
  args["use_rot_pos_emb"] = true, args["use_abs_pos_emb"] = c.learned_positions;
  args["rope_type"] = is_dinov3(c) ? "dinov3" : "cat";
  args["rope_rotate_half"] = is_dinov3(c), args["rope_temperature"] = c.rope_theta;
  if (!is_dinov3(c)) args["ref_feat_shape"] = c.rope_grid;
  args["use_fc_norm"] = c.pool == ViTPool::kMean;
  return {.architecture = timm_name(spec, c),
          .pool = mean ? "avg" : "token",
          .model_args = args.dump(),
          .first = "patch_embed.proj",
          .classifiers = {"head"},
          .says_eps = timm_has(c) && is_dinov3(c)};
}

ViTConfig EvaFiles::stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims) {
  c = ViTFiles::stored_sizes(c, dialect, dims);
  c.qkv_bias = !dims("blocks.0.attn.qkv.bias", 1).empty();
  return c;
}

void EvaFiles::give_biases(const Dialect&, ViTConfig& c) {
  c.head_bias = c.norm_bias = c.proj_bias = c.mlp_bias = true;
}

}  // namespace vitrum
