// The gradient of a convolution's weights without unfolding (sm_90a): dw(tap) (out, channels) is
// the sum over pixels of dy^T x(tap), x(tap) being the image shifted by the tap.
//
// Pixels are what the product sums over: TMA brings boxes of 64 of them, of dy and of x under the
// tap, zeros where either has none, and WGMMA takes both operands transposed. A CTA computes tiles
// of 128 of dy's channels by three panels, each 64 channels of x for one tap, over some of the
// boxes (a split). Where the panels are the three taps of a column of the window, and boxes have
// whole eights of pixels in a line, one box that is two lines higher has them all (a stack): each
// tap's pixels begin a line further. A producer warp issues the loads; two consumer warpgroups have
// 64 rows each. Each split leaves its sums in scratch, and finish() adds them up in order.
//
// The primitives it is written in (device.cuh, tma.cuh, wgmma.cuh) and host/tensor_map.h are
// included before it: tests without a card have a second set.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "vitrum/cuda/conv/windows.h"
#include "vitrum/cuda/linear/mainloop.cuh"

namespace vitrum::cuda::conv_tile_dw {

using conv::Grid, conv::Tap, conv::kMaxMaps, conv::kMaxTaps;

constexpr int kGroup = 128, kGroups = 2, kThreads = kGroups * kGroup + kWarp;  // and a producer
constexpr int kPanels = kGradientPanels, kRows = 64 * kGroups, kStages = 5;
constexpr int kPixels = kGradientPixels, kChannels = conv::kChannels;
constexpr int kPanel = kPixels * kSwizzledRow;  // bytes
constexpr int kFinishThreads = 256;
static_assert(kRows == kGradientRows);

struct Args {
  CUtensorMap dy, x[kMaxMaps];
  Tap taps[kMaxTaps];
  Grid grid;                    // boxes of dy's pixels
  int blocks, panels;           // of 64 channels of x; for every tap
  int out, wide, tiles, items;  // tiles beside each other, in all, and of all splits
  int boxes, boxes_each;        // in all; of a split
  bool stacked;
  int x_bytes;              // of a panel, or of a stack
  int next, apart;          // from a tile's panel to its next one: panels, and bytes of x
  int steps[kPixels / 16];  // bytes of x up to every 16 pixels
  float* partials;          // (splits, out, panels * 64)
};

struct Shared {
  std::byte dy[kStages][kGroups][kPanel], x[kStages][kPanels][kPanel];
  uint64_t full[kStages], empty[kStages];
};

// One split of a tile. Neighbouring blocks have the same split: its pixels stay in the cache.
struct Item {
  int split, row, panel, first, end;  // channel of dy; boxes

  __device__ __forceinline__ Item(const Args& g, int i)
      : split(i / g.tiles),
        row(i % g.tiles / g.wide * kRows),
        panel(i % g.tiles % g.wide / g.next * g.next * kPanels + i % g.tiles % g.wide % g.next),
        first(split * g.boxes_each),
        end(first + g.boxes_each < g.boxes ? first + g.boxes_each : g.boxes) {}
};

__device__ __forceinline__ void produce(const Args& g, Shared& s) {
  PipelineState<kStages> pipe;
  for (int i = static_cast<int>(blockIdx.x); i < g.items; i += static_cast<int>(gridDim.x)) {
    const Item item(g, i);
    const int rows = min(kGroups, (g.out - item.row + 63) / 64),
              boxes = g.stacked ? 1 : min(kPanels, g.panels - item.panel);
    for (int box = item.first; box < item.end; ++box, pipe.advance()) {
      const conv::Corner at = g.grid.corner(box);
      uint64_t* const full = &s.full[pipe.index];
      mbarrier_wait(&s.empty[pipe.index], pipe.phase ^ 1);
      mbarrier_arrive_expect_tx(full, rows * kPanel + boxes * g.x_bytes);
      for (int k = 0; k < rows; ++k)
        tma_load_4d(g.dy, s.dy[pipe.index][k], full, item.row + 64 * k, at.column, at.line,
                    at.image);
      for (int k = 0; k < boxes; ++k) {
        const int panel = item.panel + k;
        const Tap tap = g.taps[panel / g.blocks];
        tma_load_4d(g.x[tap.map], s.x[pipe.index][k], full, panel % g.blocks * kChannels,
                    at.column + tap.column, at.line + tap.line, at.image);
      }
    }
  }
}

struct Consumer {
  using Accumulators = float[kPanels * kChannels / 2];
  const Args& g;
  Shared& s;
  int group, thread;
  PipelineState<kStages> pipe = {};

  __device__ __forceinline__ void release(int stage) const {
    if (thread == 0) mbarrier_arrive(&s.empty[stage]);
  }
  __device__ __forceinline__ void multiply(Accumulators& d, int boxes) {
    mainloop(
        d, pipe, s.full, boxes,
        [&](int stage, int i, bool add) {
          wgmma_ss_at_bt(d, make_descriptor(s.dy[stage][group] + 16 * i * kSwizzledRow),
                         make_panel_descriptor(s.x[stage][0] + g.steps[i], g.apart), add);
        },
        [&](int stage) { release(stage); });
  }
  // Where dy has no channels left for this warpgroup.
  __device__ __forceinline__ void pass(int boxes) {
    for (int k = 0; k < boxes; ++k, pipe.advance()) {
      mbarrier_wait(&s.full[pipe.index], pipe.phase);
      release(pipe.index);
    }
  }

  __device__ __forceinline__ void leave(const Accumulators& d, const Item& item) const {
    const int lane = thread % kWarp, row = item.row + group * 64 + thread / kWarp * 16 + lane / 4;
    const int64_t wide = static_cast<int64_t>(g.panels) * kChannels;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= g.out) continue;
      float* const to = g.partials +
                        (static_cast<int64_t>(item.split) * g.out + row + 8 * half) * wide +
                        lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < kPanels * kChannels / 8; ++i) {
        const int panel = item.panel + i / 8 * g.next;
        if (panel < g.panels)
          *reinterpret_cast<float2*>(to + panel * kChannels + i % 8 * 8) = {
              d[4 * i + 2 * half], d[4 * i + 2 * half + 1]};
      }
    }
  }

  __device__ void run() {
    Accumulators d;
    for (int i = static_cast<int>(blockIdx.x); i < g.items; i += static_cast<int>(gridDim.x)) {
      const Item item(g, i);
      if (item.row + group * 64 >= g.out) {
        pass(item.end - item.first);
        continue;
      }
      multiply(d, item.end - item.first);
      leave(d, item);
    }
  }
};

// A block of the kernel.
__device__ __forceinline__ void work(const Args& g, Shared& s) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i)
      mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], kGroups);
    fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  if (group < kGroups)
    Consumer{g, s, group, static_cast<int>(threadIdx.x) % kGroup}.run();
  else if (threadIdx.x == kGroups * kGroup)
    produce(g, s);
}

// ---- the splits' sums, added to dw (out, channels, taps) ----

struct Finish {
  const float* partials;  // (splits, out, taps, blocks * 64)
  float* dw;
  int splits, out, channels, taps, blocks;
};
struct FinishShared {
  float sums[kChannels * kMaxTaps];
};
// Block (i, o): 64 channels of x and one of dy.
__device__ __forceinline__ void finish(const Finish& f, FinishShared& s) {
  const int first = static_cast<int>(blockIdx.x) * kChannels, o = static_cast<int>(blockIdx.y),
            count = min(kChannels, f.channels - first);
  const int64_t row = static_cast<int64_t>(f.taps) * f.blocks * kChannels, split = f.out * row;
  const float* const from = f.partials + o * row + first;
  for (int i = static_cast<int>(threadIdx.x); i < f.taps * kChannels; i += kFinishThreads) {
    const int tap = i / kChannels, c = i % kChannels;
    const float* const at = from + static_cast<int64_t>(tap) * f.blocks * kChannels + c;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < f.splits; ++k) sum += at[k * split];
    if (c < count) s.sums[c * f.taps + tap] = sum;
  }
  __syncthreads();
  float* const to = f.dw + (static_cast<int64_t>(o) * f.channels + first) * f.taps;
  for (int i = static_cast<int>(threadIdx.x); i < count * f.taps; i += kFinishThreads)
    to[i] += s.sums[i];
}

// ---- what the host says ----

struct Plan {
  GradientPlan split;
  Boxes boxes;
  bool stacked = false;
  int64_t floats = 0;  // of partial sums

  Box box_of_x() const {
    Box box = boxes.box;
    if (stacked) box.h += kStackedTaps - 1;
    return box;
  }
};
// Of dy (images, lines, columns, out). stacks: taps of a column of the window may be one box.
inline Plan plan_of(const CardInfo& card, const conv::Pixels& dy, int64_t panels,
                    bool stacks = false) {
  const auto [boxes, stacked] =
      choose_gradient_boxes(dy.images, dy.height, dy.width, dy.channels, stacks);
  const GradientPlan split = plan_weight_gradient(card, panels, dy.channels, boxes.count());
  return {split, boxes, stacked, split.splits * dy.channels * split.panels * kChannels};
}
inline Plan plan_of(const CardInfo& card, const ConvTask& task) {
  const conv::Pixels dy{nullptr, task.images, task.down(), task.across(), task.out};
  return plan_of(card, dy, gradient_panels(task), can_stack(task));
}
// But for the maps of x.
inline Args make_args(const Plan& plan, const conv::Pixels& dy, const std::vector<Tap>& taps,
                      float* partials) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  Args args{};
  args.dy = conv::pixels_map(dy, plan.boxes.box);
  std::copy(taps.begin(), taps.end(), args.taps);
  args.grid = conv::grid_of(plan.boxes, dy.images, dy.height, dy.width);
  args.panels = narrow(plan.split.panels);
  args.blocks = args.panels / narrow(static_cast<int64_t>(taps.size()));
  args.out = narrow(dy.channels), args.wide = narrow(plan.split.wide);
  args.tiles = narrow(plan.split.wide * plan.split.high);
  args.items = narrow(args.tiles * plan.split.splits);
  args.boxes = narrow(plan.boxes.count()), args.boxes_each = narrow(plan.split.boxes_each);
  const Box box = plan.boxes.box, of_x = plan.box_of_x();
  args.stacked = plan.stacked;
  args.x_bytes = of_x.pixels() * kSwizzledRow;
  const auto in_line = std::count_if(taps.begin(), taps.end(),
                                     [&](const Tap& tap) { return tap.line == taps[0].line; });
  args.next = plan.stacked ? narrow(in_line) * args.blocks : 1;
  args.apart = plan.stacked ? box.w * kSwizzledRow : kPanel;
  for (int i = 0; i < kPixels / 16; ++i) {
    const int image = 16 * i / (box.w * box.h);
    args.steps[i] = (16 * i + image * (of_x.h - box.h) * box.w) * kSwizzledRow;
  }
  args.partials = partials;
  return args;
}
inline conv::Pixels result_pixels(const ConvTask& task, const void* dy) {
  return {dy, task.images, task.down(), task.across(), task.out};
}
inline Args make_args(const ConvTask& task, const Plan& plan, const void* dy, const void* x,
                      float* partials) {
  Args args = make_args(plan, result_pixels(task, dy), conv::window_taps(task), partials);
  conv::set_window_maps(task, x, plan.box_of_x(), args.x);
  return args;
}
void allow();  // before the first launch
void launch(const Args& args, int processors, cudaStream_t stream);

inline Finish make_finish(const ConvTask& task, const Plan& plan, float* partials, float* dw) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  const int64_t taps = task.kernel * task.kernel;
  return {partials,
          dw,
          narrow(plan.split.splits),
          narrow(task.out),
          narrow(task.channels),
          narrow(taps),
          narrow(plan.split.panels / taps)};
}

}  // namespace vitrum::cuda::conv_tile_dw
