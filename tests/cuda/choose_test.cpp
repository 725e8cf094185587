// Which kernel is chosen, for cards that are not here.
#include "vitrum/cuda/conv/choose.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/kernel_tables.h"
#include "tests/support/training_graph.h"
#include "vitrum/models/registry.h"

namespace vitrum::cuda {
namespace {

// Calls body for each combination.
template <class Body>
void for_attention_tasks(const Body& body) {
  for (const int64_t tokens : {1,   16,  17,  49,  64,  65,  66,  80,  81,  96,   97,
                               113, 144, 197, 208, 209, 225, 577, 600, 601, 1025, 4097})
    for (const int64_t size : {8, 30, 32, 64, 72, 80, 128, 136, 256})
      for (const int64_t images : {1, 11, 256})
        for (const int64_t heads : {1, 12, 67})
          for (unsigned extras = 0; extras < 128; ++extras)
            body(AttentionTask{.images = images,
                               .tokens = tokens,
                               .heads = heads,
                               .size = size,
                               .dtype = extras & 1 ? DType::kF32 : DType::kBF16,
                               .backward = (extras & 2) != 0,
                               .drop = (extras & 4) != 0,
                               .bias = (extras & 8) != 0,
                               .mask = (extras & 16) != 0,
                               .writes = (extras & 32) == 0,
                               .aligned = (extras & 64) == 0});
}

TEST(Choose, AttentionGetsAKernelThatTakesIt) {
  for (const CardInfo& card : {kH200, kA100})
    for_attention_tasks([&](const AttentionTask& task) {
      const AttentionChoice choice = choose_attention(card, task);
      const bool legal = takes(choice.kernel, card, task);
      ASSERT_TRUE(legal) << name_of(choice.kernel) << ", tokens " << task.tokens << ", size "
                         << task.size << ", extras " << extras_of(task);
      if (choice.kernel == AttentionKernel::kWgmma) {
        ASSERT_LE(plan_wgmma(card, task)->bytes, card.shared_memory);
      }
      if (choice.kernel == AttentionKernel::kMmaSync) {
        ASSERT_LE(plan_mma_sync(card, task)->bytes, card.shared_memory);
      }
    });
}

// Tensor cores have everything of bf16 whose heads fill 16-byte loads, but dropout bits that do not
// fit into shared memory.
TEST(Choose, PlainLoopsAreForWhatTensorCoresDoNotTake) {
  for (const CardInfo& card : {kH200, kA100})
    for_attention_tasks([&](const AttentionTask& task) {
      if (choose_attention(card, task).kernel != AttentionKernel::kPlain) return;
      const bool odd = task.dtype != DType::kBF16 || task.size % 8 != 0 || task.size > 192 ||
                       !task.aligned || (task.drop && task.tokens > 1024);
      ASSERT_TRUE(odd) << "tokens " << task.tokens << ", size " << task.size << ", extras "
                       << extras_of(task);
    });
}

// Heads of 32 and of 65 to 80 values have products of warpgroups where there are many.
TEST(Choose, HeadsOfOtherSizesThan64) {
  const auto kernel = [](int64_t tokens, int64_t size, bool backward, int64_t images = 64) {
    return choose_attention(kH200, {.images = images,
                                    .tokens = tokens,
                                    .heads = 16,
                                    .size = size,
                                    .backward = backward})
        .kernel;
  };
  using enum AttentionKernel;
  for (const bool backward : {false, true}) {
    EXPECT_EQ(kernel(197, 32, backward), kSmem);
    EXPECT_EQ(kernel(197, 32, backward, 8), kMmaSync);
    EXPECT_EQ(kernel(209, 32, backward), kMmaSync);
    EXPECT_EQ(kernel(197, 40, backward), kMmaSync);
    EXPECT_EQ(kernel(257, 88, backward), kMmaSync);
    for (const int64_t size : {72, 80})
      for (const int64_t tokens : {129, 257, 730})
        EXPECT_EQ(kernel(tokens, size, backward), backward ? kMmaSync : kChunked);
  }
}

TEST(Choose, LinearLayersGetAKernelThatTakesThem) {
  for (const CardInfo& card : {kH200, kA100})
    for (const int64_t rows : {1, 197, 512, 513, 8191, 8192, 50432, 802816})
      for (const int64_t columns : {10, 96, 128, 192, 256, 384, 768, 1000, 1024, 2048, 3072, 4096})
        for (const int64_t depth : {8, 48, 64, 96, 100, 256, 320, 384, 768, 3072})
          for (const Act act : {Act::kNone, Act::kGelu, Act::kGeluTanh, Act::kRelu, Act::kQuickGelu,
                                Act::kSilu, Act::kSigmoid})
            for (unsigned extras = 0; extras < 64; ++extras) {
              const LinearTask task{.rows = rows,
                                    .columns = columns,
                                    .depth = depth,
                                    .act = act,
                                    .drop = (extras & 1) != 0,
                                    .bf16 = (extras & 2) == 0,
                                    .saves = (extras & 4) != 0,
                                    .frozen = (extras & 8) != 0,
                                    .writes = (extras & 16) == 0,
                                    .aligned = (extras & 32) == 0};
              const LinearKernel kernel = choose_linear(card, task);
              ASSERT_TRUE(takes(kernel, card, task))
                  << name_of(kernel) << ", rows " << rows << ", columns " << columns << ", depth "
                  << depth << ", extras " << extras_of(task);
              if (kernel == LinearKernel::kSmallM) {
                const SmallMPlan plan = plan_small_m(card, task);
                ASSERT_EQ(columns % plan.columns, 0);
                ASSERT_LE(plan.splits, 4);
              }
            }
}

// Calls body for each combination.
template <class Body>
void for_conv_tasks(const Body& body) {
  for (const int64_t images : {1, 3, 128, 1024})
    for (const int64_t side : {1, 2, 7, 14, 33, 56, 224})
      for (const int64_t channels : {3, 8, 32, 40, 64, 96, 2048})
        for (const int64_t out : {10, 32, 64, 72, 512})
          for (const int64_t kernel : {1, 2, 3, 5, 7})
            for (const int64_t stride : {1, 2, 3})
              for (unsigned extras = 0; extras < 8; ++extras)
                if (side + kernel / 2 * 2 >= kernel)
                  body(ConvTask{.images = images,
                                .height = side,
                                .width = 2 * side,
                                .channels = channels,
                                .out = out,
                                .kernel = kernel,
                                .stride = stride,
                                .padding = kernel / 2,
                                .bf16 = (extras & 1) == 0,
                                .followed = (extras & 2) != 0,
                                .aligned = (extras & 4) == 0});
}

TEST(Choose, ConvolutionsGetAKernelThatTakesThem) {
  for (const CardInfo& card : {kH200, kA100})
    for_conv_tasks([&](const ConvTask& task) {
      for (const ConvPass pass :
           {ConvPass::kForward, ConvPass::kInputGradient, ConvPass::kWeightGradient}) {
        const ConvKernel kernel = choose_conv(card, task, pass);
        if (kernel == ConvKernel::kLinear) {
          ASSERT_TRUE(task.pixel_by_pixel());
        }
        if (kernel == ConvKernel::kTile) {
          ASSERT_TRUE(takes_tile(card, task, pass));
          ASSERT_TRUE(card.has_tma_wgmma && task.bf16 && task.aligned);
        }
        if (kernel == ConvKernel::kLines) {
          ASSERT_TRUE(takes_lines(card, task, pass));
          ASSERT_LE(task.kernel * task.channels, line_room(task));
        }
        if (kernel == ConvKernel::kSmallK) {
          ASSERT_TRUE(pass == ConvPass::kForward && task.followed && takes_small_k(card, task));
        }
      }
    });
}

// Every pixel is in a box; a box fits a tile, or fills it; few boxes lie beyond the edge.
TEST(Choose, BoxesHaveEveryPixel) {
  for (const int64_t images : {1, 5, 256})
    for (const int64_t down : {1, 7, 8, 28, 56, 113})
      for (const int64_t across : {1, 7, 14, 32, 112})
        for (const bool exact : {false, true})
          for (const int pixels : {64, 128}) {
            const Boxes b = choose_boxes(images, down, across, pixels, exact);
            ASSERT_GE(b.wide * b.box.w, across);
            ASSERT_GE(b.high * b.box.h, down);
            ASSERT_GE(b.deep * b.box.n, images);
            ASSERT_LE(b.box.pixels(), pixels);
            if (exact) {
              ASSERT_EQ(b.box.pixels(), pixels);
            }
            const int64_t all = images * down * across;
            if (all >= 4096) {
              ASSERT_LE(b.count() * pixels, 13 * all / 10) << down << " " << across;
            }
          }
}

// Stacks have lines of whole eights, fit the shared memory and leave a warpgroup one run of pixels.
TEST(Choose, StackedBoxesHaveEveryPixel) {
  int stacks = 0;
  for (const int64_t images : {1, 5, 256})
    for (const int64_t down : {1, 7, 8, 28, 56, 113})
      for (const int64_t across : {1, 7, 14, 32, 112})
        for (const int64_t out : {32, 64, 128, 256}) {
          const TileChoice tile = choose_tile(kH200, images, down, across, out, /*stacks=*/true);
          const GradientBoxes back = choose_gradient_boxes(images, down, across, out, true);
          for (const Boxes& b : {tile.boxes, back.boxes}) {
            ASSERT_GE(b.wide * b.box.w, across);
            ASSERT_GE(b.high * b.box.h, down);
            ASSERT_GE(b.deep * b.box.n, images);
          }
          if (tile.stacked) {
            const Box& box = tile.boxes.box;
            ASSERT_TRUE(box.pixels() == kTilePixels && box.w % 8 == 0 && tile.columns == 64);
            ASSERT_GE(box.w * box.h, kTilePixels / 2);
            ASSERT_LE(stacked_pixels(box), kMostStackedPixels);
            ++stacks;
          }
          if (back.stacked) {
            const Box& box = back.boxes.box;
            ASSERT_TRUE(box.pixels() == kGradientPixels && box.w % 8 == 0);
            ASSERT_EQ(box.w * box.h % 16, 0);
            ASSERT_LE(stacked_pixels(box), kGradientPanels * kGradientPixels);
            ++stacks;
          }
        }
  EXPECT_GT(stacks, 0);
}

TEST(Choose, WeightGradientsAreDividedWithoutRest) {
  for (const CardInfo& card : {kH200, kA100})
    for_conv_tasks([&](const ConvTask& task) {
      const int64_t boxes =
          choose_boxes(task.images, task.down(), task.across(), kGradientPixels, true).count();
      const GradientPlan plan = plan_weight_gradient(card, gradient_panels(task), task.out, boxes);
      ASSERT_GE(plan.wide * kGradientPanels, plan.panels);
      ASSERT_GE(plan.high * kGradientRows, task.out);
      ASSERT_GE(plan.splits * plan.boxes_each, boxes);
      ASSERT_LT((plan.splits - 1) * plan.boxes_each, boxes);
    });
}

// What is asked of the shapes that epilogues are for, and what they are not for.
TEST(Choose, EpiloguesOfLinearLayers) {
  const LinearTask qkv{.rows = 66816, .columns = 2304, .depth = 768};
  EXPECT_TRUE(fuses_rotation(kH200, qkv, 64));
  EXPECT_FALSE(fuses_rotation(kA100, qkv, 64));
  EXPECT_FALSE(fuses_rotation(kH200, qkv, 96));
  EXPECT_FALSE(fuses_rotation(kH200, {.rows = 261, .columns = 2304, .depth = 768}, 64));
  const LinearTask gated{.rows = 65600, .columns = 4096, .depth = 768};
  EXPECT_TRUE(fuses_gate(kH200, gated, Act::kSilu));
  EXPECT_FALSE(fuses_gate(kH200, gated, Act::kGelu));
  EXPECT_FALSE(fuses_gate(kH200, {.rows = 65600, .columns = 5460, .depth = 1024}, Act::kSilu));
  LinearTask fc2{.rows = 802816, .columns = 96, .depth = 384, .frozen = true};
  EXPECT_TRUE(adds_residual(kH200, fc2));
  fc2.rows = 49;
  EXPECT_FALSE(adds_residual(kH200, fc2));
  fc2.rows = 802816, fc2.frozen = false;
  EXPECT_FALSE(adds_residual(kH200, fc2));
  LinearTask fc1{.rows = 32768, .columns = 4304, .depth = 1152, .act = Act::kGeluTanh};
  EXPECT_TRUE(fuses_gelu_tanh(fc1));
  fc1.saves = true;
  EXPECT_FALSE(fuses_gelu_tanh(fc1));
  fc1.saves = false, fc1.act = Act::kGelu;
  EXPECT_FALSE(fuses_gelu_tanh(fc1));
}

TEST(Choose, QueriesAWarpOfMmaSync) {
  AttentionTask task{.images = 128, .tokens = 256, .heads = 16, .size = 72};
  EXPECT_TRUE(is_wide_mma_sync(kH200, task));
  task.bias = task.mask = true;
  EXPECT_TRUE(is_wide_mma_sync(kH200, task));
  for (const auto& change : std::initializer_list<void (*)(AttentionTask&)>{
           [](AttentionTask& t) { t.images = 1; }, [](AttentionTask& t) { t.tokens = 64; },
           [](AttentionTask& t) { t.drop = true; }, [](AttentionTask& t) { t.backward = true; },
           [](AttentionTask& t) { t.size = 128; }, [](AttentionTask& t) { t.writes = false; }}) {
    AttentionTask other = task;
    change(other);
    EXPECT_FALSE(is_wide_mma_sync(kH200, other));
  }
}

// Chunks of keys: at most three where they are brought once; each key is in one.
TEST(Choose, ChunksOfKeys) {
  for (const int64_t size : {64, 72, 80})
    for (int64_t tokens = 209; tokens < 5000; ++tokens) {
      const int64_t keys = keys_of_chunk(tokens, size), chunks = (tokens + keys - 1) / keys;
      const int rounds = rounds_of_chunks(tokens, chunks);
      ASSERT_EQ(rounds == 1, chunks <= 3) << tokens;
      ASSERT_TRUE(rounds == 1 || rounds * 3 * 64 >= tokens) << tokens;
      ASSERT_TRUE(tokens > (size > 64 ? 408 : 600) || rounds == 1) << tokens;
    }
}

// Layers of e4m3: every width that 32 divides has a kernel on a card with such products, and no
// other card has one.
TEST(Choose, LayersOfE4M3) {
  for (const int64_t rows : {1, 64, 197, 512, 513, 50432})
    for (const int64_t columns : {32, 96, 128, 192, 384, 576, 768, 2304, 4096, 5120, 100})
      for (const int64_t depth : {32, 96, 192, 768, 3072, 5120, 40}) {
        const LinearTask task{.rows = rows, .columns = columns, .depth = depth};
        const E4M3Kernel kernel = choose_e4m3(kH200, task);
        EXPECT_EQ(choose_e4m3(kA100, task), E4M3Kernel::kNone);
        EXPECT_EQ(kernel == E4M3Kernel::kNone, columns % 32 != 0 || depth % 32 != 0);
        if (kernel != E4M3Kernel::kSmallM) continue;
        EXPECT_LE(rows, 512);
        EXPECT_EQ(columns % 128, 0);
        const SmallMPlan plan = plan_small_m_e4m3(kH200, task);
        EXPECT_GE(plan.splits, 1);
        EXPECT_LE(plan.splits, 4);
        EXPECT_LE(plan.splits * 6, std::max<int64_t>(6, ceil_div(depth, 128)))
            << "steps of a split";
      }
}

// ---- what presets get ----

const Shape& shape_of(const Graph& g, ValueId id) {
  return g.values[static_cast<size_t>(id)].shape;
}
bool present(const std::vector<ValueId>& ids, size_t i) {
  return i < ids.size() && ids[i] != kAbsent;
}

// T: Attention or AttentionBwd.
template <class T>
AttentionTask task_of(const Graph& g, const Node& node, const T& op) {
  const auto& [heads, drop, site] = op;
  const Shape& qkv = shape_of(g, node.in[T::kQkv]);
  return {.images = qkv[0],
          .tokens = qkv[1],
          .heads = heads,
          .size = qkv[2] / 3 / heads,
          .backward = std::is_same_v<T, AttentionBwd>,
          .drop = drop != 0,
          .bias = present(node.in, T::kBias),
          .mask = present(node.in, T::kMask)};
}

// The number of attention nodes; none of them may be left to plain loops.
int expect_tensor_cores(const Graph& g) {
  int found = 0;
  for (const Node& node : g.nodes) {
    AttentionTask task;
    if (const auto* op = std::get_if<Attention>(&node.op))
      task = task_of(g, node, *op);
    else if (const auto* bwd = std::get_if<AttentionBwd>(&node.op))
      task = task_of(g, node, *bwd);
    else
      continue;
    ++found;
    EXPECT_NE(choose_attention(kH200, task).kernel, AttentionKernel::kPlain)
        << node.name << ", " << task.tokens << " tokens, heads of " << task.size;
  }
  return found;
}

TEST(Choose, NoPresetRunsPlainLoopsOnHopper) {
  int inference = 0, training = 0;
  for (const Preset& preset : presets()) {
    SCOPED_TRACE(preset.name);
    const ModelConfig& cfg = preset.config;
    for (const int64_t batch : {1, 64}) {
      Graph g(Mode::kInference);
      model(Scope(g), g.input("image", {batch, cfg.channels(), cfg.image_h(), cfg.image_w()}), cfg);
      inference += expect_tensor_cores(g);
    }
    const test::TrainingGraph graph(cfg, 8);
    training += expect_tensor_cores(graph.g);
  }
  EXPECT_GT(inference, 0);
  EXPECT_EQ(training, inference);  // there and back, where inference was traced twice
}

TEST(Choose, ThePageHasTheTables) {
  std::ifstream file(VITRUM_SOURCE_DIR "/docs/kernels.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(page.find(test::kernel_tables()), std::string::npos)
      << "docs/kernels.md: replace its tables with\n"
      << test::kernel_tables();
}

}  // namespace
}  // namespace vitrum::cuda
