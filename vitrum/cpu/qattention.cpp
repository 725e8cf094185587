// Attention of eight bits: keys and values of a head become bytes once, then band after band of
// queries goes through both products and the softmax between them, in the first-level cache.
#include <algorithm>
#include <cmath>
#include <utility>

#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/byte_attention.h"

namespace vitrum::cpu {
namespace {

class QAttentionKernel final : public Kernel {
 public:
  QAttentionKernel(CpuBackend& cpu, const QAttention& op, const Operands& io)
      : cpu_(cpu),
        qkv_(io.in[QAttention::kQkv]),
        y_(io.out[QAttention::kY]),
        bias_(f32_only(operand(io.in, QAttention::kBias))),
        mask_(f32_only(operand(io.in, QAttention::kMask))),
        masks_(mask_ ? io.in[QAttention::kMask].shape[0] : 1),
        heads_(op.heads),
        tokens_(qkv_.shape[1]),
        head_(qkv_.shape[2] / (3 * heads_)),
        padded_(round_up(tokens_, kBand)),
        channels_(round_up(head_, kBand)),
        queries_{tokens_, tokens_} {
    if (items() < kFewHeads) queries_.size = round_up(ceil_div(tokens_, 2), kRowsAtOnce);
    cpu.reserve_per_thread(static_cast<size_t>(words()) * sizeof(uint32_t));
  }

  void launch() override {
    // A thread keeps to its part of the rows, as in the layers before and after.
    const int64_t parts = queries_.count();
    cpu_.pool().run(items() * parts, [&](int64_t task, int thread) {
      const int64_t part = task / heads_ % parts;
      head(task / (heads_ * parts), task % heads_, queries_.first(part), queries_.last(part),
           thread);
    });
  }

 private:
  // Where there are only a few heads, one is cut in two, so that threads finish together.
  static constexpr int64_t kFewHeads = 12, kRowsAtOnce = 8;

  int64_t items() const { return qkv_.shape[0] * heads_; }
  // Keys, values, a band of queries and one of weights; sums of both products; scales.
  int64_t words() const {
    return packed_byte_words(padded_, head_) + packed_byte_words(channels_, tokens_) +
           byte_band_words(head_) + byte_band_words(tokens_) + kBand * (padded_ + channels_) +
           2 * padded_ + 2 * channels_ + 2 * kBand;
  }

  void head(int64_t b, int64_t h, int64_t first, int64_t last, int thread) {
    const ByteAttentionKernels& simd = *cpu_.simd().byte_attention;
    auto* next = reinterpret_cast<uint32_t*>(cpu_.thread_scratch(thread));
    const auto take = [&]<class T>(int64_t count) {
      return reinterpret_cast<T*>(std::exchange(next, next + count));
    };
    auto *keys = take.operator()<uint32_t>(packed_byte_words(padded_, head_)),
         *values = take.operator()<uint32_t>(packed_byte_words(channels_, tokens_)),
         *queries = take.operator()<uint32_t>(byte_band_words(head_)),
         *weights = take.operator()<uint32_t>(byte_band_words(tokens_));
    auto *scores = take.operator()<int32_t>(kBand * padded_),
         *sums = take.operator()<int32_t>(kBand * channels_),
         *key_sum = take.operator()<int32_t>(padded_);
    auto *key_scale = take.operator()<float>(padded_),
         *value_scale = take.operator()<float>(channels_),
         *mean = take.operator()<float>(channels_), *query_scale = take.operator()<float>(kBand),
         *inverse = take.operator()<float>(kBand);
    std::fill_n(queries, byte_band_words(head_), 0u);
    std::fill_n(weights, byte_band_words(tokens_), 0u);
    const float finite = simd.pack_keys(part(b, h, 1), keys, key_scale, key_sum);
    simd.pack_values(part(b, h, 2), values, value_scale, mean);
    const int64_t square = tokens_ * tokens_;
    // Whole groups of rows: what is too much has room, and is not read.
    const auto multiply = [&](const uint32_t* a, const uint32_t* right, int32_t* c, int64_t rows,
                              int64_t columns, int64_t depth) {
      cpu_.bytes().multiply({a, right, c, columns, round_up(rows, kRowsAtOnce), columns, depth,
                             /*accumulate=*/false});
    };
    for (; first < last; first += kBand) {
      const int64_t rows = std::min(kBand, last - first);
      simd.pack_queries(part(b, h, 0), first, rows, queries, query_scale);
      multiply(queries, keys, scores, rows, padded_, head_);
      simd.softmax({.sums = scores,
                    .stride = padded_,
                    .rows = rows,
                    .tokens = tokens_,
                    .query_scale = query_scale,
                    .scale = 1 / std::sqrt(static_cast<float>(head_)),
                    .key_scale = key_scale,
                    .key_sum = key_sum,
                    .bias = bias_ ? bias_ + h * square + first * tokens_ : nullptr,
                    .mask = mask_ ? mask_ + b % masks_ * square + first * tokens_ : nullptr,
                    .finite = finite},
                   weights, inverse);
      multiply(weights, values, sums, rows, channels_, tokens_);
      const int64_t width = heads_ * head_;
      simd.write(sums, channels_, rows, value_scale, mean, inverse,
                 {floats(y_), (b * tokens_ + first) * width + h * head_, width, rows, head_});
    }
  }
  ByteHead part(int64_t b, int64_t h, int64_t which) const {
    const int64_t width = 3 * heads_ * head_;
    return {floats(qkv_), b * tokens_ * width + (which * heads_ + h) * head_, width, tokens_,
            head_};
  }

  CpuBackend& cpu_;
  TensorView qkv_, y_;
  const float *bias_, *mask_;
  int64_t masks_, heads_, tokens_, head_;
  int64_t padded_, channels_;  // tokens and values of a head, up to whole bands
  Chunks queries_;             // of a head, in a task
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const QAttention& op, const Operands& io) {
  [[maybe_unused]] const auto& [heads] = op;
  return std::make_unique<QAttentionKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
