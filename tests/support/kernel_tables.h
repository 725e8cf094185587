// Which kernels an H200 runs, as tables for docs/kernels.md: made by the functions that choose.
#pragma once
#include <fmt/format.h>

#include <string>

#include "vitrum/cuda/attention/choose.h"
#include "vitrum/cuda/conv/choose.h"
#include "vitrum/cuda/linear/choose.h"

namespace vitrum::test {

inline std::string attention_table() {
  using namespace cuda;
  struct Row {
    const char* what;
    AttentionTask task;
  };
  static const Row rows[] = {
      {"ViT, 32 px (65 tokens), batch 256", {.images = 256, .tokens = 65, .heads = 6}},
      {"ViT-B/32, 224 px, batch 64", {.images = 64, .tokens = 50, .heads = 12}},
      {"ViT-B/16, 224 px, batch 256", {.images = 256, .tokens = 197, .heads = 12}},
      {"ViT-B/16, 224 px, batch 1", {.images = 1, .tokens = 197, .heads = 12}},
      {"ViT-B/16, 384 px, batch 64", {.images = 64, .tokens = 577, .heads = 12}},
      {"ViT-B/16, 384 px, batch 1", {.images = 1, .tokens = 577, .heads = 12}},
      {"ViT, 1,025 tokens, batch 64", {.images = 64, .tokens = 1025, .heads = 12}},
      {"heads of 80 values (ViT-H/14), batch 64",
       {.images = 64, .tokens = 257, .heads = 16, .size = 80}},
      {"a masked autoencoder's decoder, 224 px, batch 512",
       {.images = 512, .tokens = 197, .heads = 16, .size = 32}},
      {"with dropout of the weights", {.images = 64, .tokens = 197, .heads = 12, .drop = true}},
      {"DINOv3-B/16, 256 px, batch 256", {.images = 256, .tokens = 261, .heads = 12}},
      {"DINOv2-B/14, 518 px, batch 64", {.images = 64, .tokens = 1370, .heads = 12}},
      {"SigLIP so400m/14, 224 px, batch 128",
       {.images = 128, .tokens = 256, .heads = 16, .size = 72}},
      {"BEiT-B/16, 224 px, bias, batch 256",
       {.images = 256, .tokens = 197, .heads = 12, .bias = true}},
      {"Swin, window 7, bias",
       {.images = 4096, .tokens = 49, .heads = 3, .size = 32, .bias = true}},
      {"Swin, window 12, bias and mask",
       {.images = 4096, .tokens = 144, .heads = 4, .size = 32, .bias = true, .mask = true}},
      {"f32", {.images = 64, .tokens = 197, .heads = 12, .dtype = DType::kF32}},
  };
  std::string out =
      "| attention | tokens | head | forward | backward | columns added up "
      "|\n|---|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    AttentionTask back = row.task;
    back.backward = true;
    const AttentionChoice forward = choose_attention(kH200, row.task),
                          backward = choose_attention(kH200, back);
    out += fmt::format("| {} | {} | {} | `{}` | `{}` | {} |\n", row.what, row.task.tokens,
                       row.task.size, name_of(forward.kernel), name_of(backward.kernel),
                       backward.adds_columns ? "yes" : "no");
  }
  return out;
}

inline std::string attention_limits_table() {
  using namespace cuda;
  std::string out =
      "| kernel | tokens | head | sm_90a | takes, beside bf16 |\n|---|---|---|---|---|\n";
  for (int i = 0; i <= static_cast<int>(AttentionKernel::kPlain); ++i) {
    const auto kernel = static_cast<AttentionKernel>(i);
    const AttentionLimits limits = limits_of(kernel, /*backward=*/true);
    const auto range = [](int64_t low, int64_t high, int64_t any) {
      if (low == high) return fmt::format("{}", low);
      return high >= any ? fmt::format("from {}", low) : fmt::format("{} to {}", low, high);
    };
    std::string extras;
    for (const auto& [bit, name] : {std::pair{kTakesF32, "f32"},
                                    {kTakesDrop, "dropout"},
                                    {kTakesBias, "bias"},
                                    {kTakesMask, "mask"},
                                    {kTakesUnaligned, "any address"}})
      if (limits.takes & bit) extras += (extras.empty() ? "" : ", ") + std::string(name);
    out += fmt::format("| `{}` | {} | {}{} | {} | {} |\n", name_of(kernel),
                       range(limits.min_tokens, limits.max_tokens, INT32_MAX),
                       range(limits.min_size, limits.max_size, INT32_MAX),
                       limits.size_step > 1 ? fmt::format(", step {}", limits.size_step) : "",
                       limits.needs_tma_wgmma ? "needed" : "no", extras.empty() ? "-" : extras);
  }
  return out;
}

inline std::string linear_table() {
  using namespace cuda;
  struct Row {
    const char* what;
    LinearTask task;
  };
  const auto layer = [](int64_t rows, int64_t depth, int64_t columns, Act act, bool frozen,
                        bool saves = false) {
    return LinearTask{.rows = rows,
                      .columns = columns,
                      .depth = depth,
                      .act = act,
                      .saves = saves,
                      .frozen = frozen};
  };
  constexpr Act kNone = Act::kNone, kGelu = Act::kGelu;
  const Row rows[] = {
      {"ViT-B/16 fc1, inference, batch 1", layer(197, 768, 3072, kGelu, true)},
      {"ViT-B/16 qkv, inference, batch 1", layer(197, 768, 2304, kNone, true)},
      {"ViT-B/16 fc1, inference, batch 256", layer(50432, 768, 3072, kGelu, true)},
      {"ViT-B/16 qkv, inference, batch 256", layer(50432, 768, 2304, kNone, true)},
      {"ViT-B/16 fc1, training, batch 256", layer(50432, 768, 3072, kGelu, false, true)},
      {"ViT-Ti/16 fc1, training, batch 256", layer(50432, 192, 768, kGelu, false, true)},
      {"ViT, 32 px, 256 wide, fc1, training", layer(16640, 256, 1024, kGelu, false, true)},
      {"Swin-T stage 1 fc1, training, batch 128", layer(401408, 96, 384, kGelu, false, true)},
      {"SigLIP-B/16 fc1 (tanh), inference, batch 256",
       layer(50176, 768, 3072, Act::kGeluTanh, true)},
      {"SigLIP so400m/14 fc1 (tanh), inference, batch 128",
       layer(32768, 1152, 4304, Act::kGeluTanh, true)},
      {"head, 1,000 classes, batch 256", layer(256, 768, 1000, kNone, true)},
  };
  std::string out = "| linear layer | rows | K | columns | kernel |\n|---|---|---|---|---|\n";
  for (const Row& row : rows)
    out += fmt::format("| {} | {} | {} | {} | `{}` |\n", row.what, row.task.rows, row.task.depth,
                       row.task.columns, name_of(choose_linear(kH200, row.task)));
  return out;
}

inline std::string conv_table() {
  using namespace cuda;
  struct Row {
    const char* what;
    ConvTask task;
  };
  const auto conv = [](int64_t images, int64_t side, int64_t channels, int64_t out, int64_t kernel,
                       int64_t stride, bool followed = false) {
    return ConvTask{.images = images,
                    .height = side,
                    .width = side,
                    .channels = channels,
                    .out = out,
                    .kernel = kernel,
                    .stride = stride,
                    .padding = kernel / 2,
                    .followed = followed};
  };
  const Row rows[] = {
      {"ResNet-50 stem, batch 256", conv(256, 224, 3, 64, 7, 2)},
      {"ResNet-50 stage 1, 3x3, batch 256", conv(256, 56, 64, 64, 3, 1)},
      {"ResNet-50 stage 2, 3x3 / 2, batch 256", conv(256, 56, 128, 128, 3, 2)},
      {"ResNet-50 stage 3, 3x3, batch 256", conv(256, 14, 256, 256, 3, 1)},
      {"ResNet-50 stage 4, 3x3, batch 256", conv(256, 7, 512, 512, 3, 1)},
      {"ResNet-50 stage 4, 3x3, inference, batch 1", conv(1, 7, 512, 512, 3, 1, true)},
      {"ResNet-50 stage 2, 1x1, batch 256", conv(256, 28, 512, 128, 1, 1)},
      {"the same, inference", conv(256, 28, 512, 128, 1, 1, true)},
      {"ResNet-50 stage 2, 1x1 back, inference", conv(256, 28, 128, 512, 1, 1, true)},
      {"ResNet-50 downsample, 1x1 / 2, batch 256", conv(256, 56, 256, 512, 1, 2)},
      {"resnet18_cifar stem, batch 512", conv(512, 32, 3, 64, 3, 1)},
      {"resnet18_cifar stage 1, 3x3, batch 512", conv(512, 32, 64, 64, 3, 1)},
      {"resnet18_cifar stage 4, 3x3, batch 512", conv(512, 4, 512, 512, 3, 1)},
  };
  std::string out =
      "| convolution | pixels | box | forward | input's gradient | weights' gradient |\n"
      "|---|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    const ConvTask t = row.task.flattened();
    const TileChoice tile = choose_tile(kH200, t.images, t.down(), t.across(), t.out, can_stack(t));
    const Box& box = tile.boxes.box;
    const auto chosen = [&](ConvPass pass) { return name_of(choose_conv(kH200, t, pass)); };
    const ConvKernel forward = choose_conv(kH200, t, ConvPass::kForward);
    out += fmt::format(
        "| {} | {} | {} | `{}` |", row.what, t.images * t.down() * t.across(),
        forward == ConvKernel::kTile
            ? fmt::format("{} x {} x {}{}", box.n, box.h, box.w, tile.stacked ? ", stacked" : "")
            : "-",
        name_of(forward));
    out += t.followed ? " - | - |\n"
                      : fmt::format(" `{}` | `{}` |\n", chosen(ConvPass::kInputGradient),
                                    chosen(ConvPass::kWeightGradient));
  }
  return out;
}

inline std::string e4m3_table() {
  using namespace cuda;
  struct Row {
    const char* what;
    LinearTask task;
  };
  const Row rows[] = {
      {"ViT-B/16 qkv, batch 256", {.rows = 50432, .columns = 2304, .depth = 768}},
      {"ViT-B/16 fc2, batch 256", {.rows = 50432, .columns = 768, .depth = 3072}},
      {"ViT-Ti/16 qkv, batch 256", {.rows = 50432, .columns = 576, .depth = 192}},
      {"ViT-B/16 fc1, batch 1", {.rows = 197, .columns = 3072, .depth = 768}},
      {"ViT-B/16 proj, batch 1", {.rows = 197, .columns = 768, .depth = 768}},
      {"ViT-Ti/16 qkv, batch 1", {.rows = 197, .columns = 576, .depth = 192}},
  };
  std::string out = "| layer of fp8 | rows | K | columns | kernel |\n|---|---|---|---|---|\n";
  for (const Row& row : rows)
    out += fmt::format("| {} | {} | {} | {} | `{}` |\n", row.what, row.task.rows, row.task.depth,
                       row.task.columns, name_of(choose_e4m3(kH200, row.task)));
  return out;
}

// All of them, as they stand in the page.
inline std::string kernel_tables() {
  return attention_limits_table() + "\n" + attention_table() + "\n" + linear_table() + "\n" +
         conv_table() + "\n" + e4m3_table();
}

}  // namespace vitrum::test
