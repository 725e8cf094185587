#include "vitrum/cpu/simd/attention.h"

#include <array>
#include <cmath>

#include "vitrum/cpu/gemm.h"

namespace vitrum::cpu {
namespace {

struct Dims {
  int64_t batch, tokens, heads, head, width;  // width = heads * head
  int64_t padded;                             // tokens, up to whole vectors

  Dims(const TensorView& qkv, int64_t heads_)
      : batch(qkv.shape[0]),
        tokens(qkv.shape[1]),
        heads(heads_),
        head(qkv.shape[2] / (3 * heads_)),
        width(heads * head),
        padded((tokens + 15) / 16 * 16) {}
  // Draws of the side-by-side kernels are counted in 32 bits.
  bool side_by_side() const {
    return head <= kLaneHead && tokens <= 256 &&
           batch * heads * tokens * draws_per_row(tokens) < (int64_t{1} << 32);
  }
  int64_t groups() const { return (batch * heads + 15) / 16; }
};

// Hands out pieces of a thread's scratch.
struct Pieces {
  float* next;
  float* take(int64_t n) {
    float* piece = next;
    next += (n + 15) / 16 * 16;
    return piece;
  }
};

// The optional operands that the ops of attention have in common.
struct Extras {
  TensorView rng, bias, mask;
};
template <class AttentionOp>
Extras extras(const std::vector<TensorView>& in) {
  return {operand(in, AttentionOp::kRng), operand(in, AttentionOp::kBias),
          operand(in, AttentionOp::kMask)};
}

class HeadKernel : public Kernel {
 protected:
  HeadKernel(CpuBackend& cpu, const TensorView& qkv, int64_t heads, float drop, uint32_t site,
             const Extras& extras)
      : cpu_(cpu),
        dims_(qkv, heads),
        scale_(1.0f / std::sqrt(static_cast<float>(dims_.head))),
        drop_(drop),
        site_(site),
        rng_(extras.rng),
        tiled_(takes_tiles(cpu, {qkv})),
        bias_(f32_only(extras.bias)),
        mask_(f32_only(extras.mask)),
        masks_(mask_ ? extras.mask.shape[0] : 1) {}

  bool has_offsets() const { return bias_ || mask_; }
  bool side_by_side() const { return !has_offsets() && dims_.side_by_side(); }
  int64_t square() const { return dims_.tokens * dims_.tokens; }
  struct Rows {
    int64_t first, count;
  };
  Rows all() const { return {0, dims_.tokens}; }
  // The factor that the softmax still has to apply to the scores of some rows of head h of item b.
  float biased(float* s, int64_t b, int64_t h, Rows rows) const {
    if (!has_offsets()) return scale_;
    const int64_t at = rows.first * dims_.tokens;
    cpu_.simd().attention->add_bias(s, rows.count, dims_.tokens, dims_.padded, scale_,
                                    bias_ ? bias_ + h * square() + at : nullptr,
                                    mask_ ? mask_ + b % masks_ * square() + at : nullptr);
    return 1;
  }

  void reserve(int64_t floats) {
    cpu_.reserve_per_thread(static_cast<size_t>(floats) * sizeof(float));
  }
  const DropSite* read_drop(DropSite& site) const {
    if (drop_ == 0) return nullptr;
    site = drop_site(random_state(rng_), drop_, site_);
    return &site;
  }
  // Element number of (b, token 0, part, h) in a tensor of `parts` parts.
  int64_t at(int64_t b, int64_t h, int64_t parts, int64_t part) const {
    return b * dims_.tokens * parts * dims_.width + part * dims_.width + h * dims_.head;
  }
  // One head's (tokens, head) of a tensor: where it lies, and as f32, which is there where whole
  // vectors are, or else contiguous in `room`. Tiles are packed from where it lies, without room.
  struct Matrix {
    TileSource source;
    float* f32;
    int64_t stride;  // of the f32
    bool there;
  };
  Matrix place(const TensorView& x, int64_t parts, int64_t part, int64_t b, int64_t h,
               float* room) const {
    const TileSource source{floats(x), at(b, h, parts, part), parts * dims_.width, /*along=*/true};
    if (x.dtype == DType::kF32 && dims_.head % 16 == 0)
      return {source, x.f32() + source.at, source.stride, true};
    return {source, room, dims_.head, false};
  }
  Matrix matrix(const TensorView& x, int64_t parts, int64_t part, int64_t b, int64_t h,
                float* room) const {
    const Matrix m = place(x, parts, part, b, h, room);
    if (m.f32 && !m.there)
      cpu_.simd().attention->gather(m.source.x, m.source.at, m.source.stride, dims_.tokens,
                                    dims_.head, m.f32);
    return m;
  }
  std::array<Matrix, 3> queries_keys_values(const TensorView& qkv, int64_t b, int64_t h,
                                            Pieces& scratch) const {
    const auto part = [&](int64_t i) {
      return matrix(qkv, 3, i, b, h, tiled_ ? nullptr : scratch.take(dims_.tokens * dims_.head));
    };
    return {part(0), part(1), part(2)};
  }
  // Some rows of a result to where they lie, if they are not there.
  void deliver(const Matrix& m, Rows rows) const {
    if (m.there) return;
    cpu_.simd().attention->scatter(m.f32 + rows.first * m.stride, m.source.x,
                                   m.source.at + rows.first * m.source.stride, m.source.stride,
                                   rows.count, dims_.head, nullptr);
  }
  // The three products below. `work`: work_floats() of scratch.
  // s (tokens, padded) = a b^T, both (tokens, head).
  void scores(const Matrix& a, const Matrix& b, float* s, float* work) const {
    if (tiled_)
      return multiply_tiles(a.source, b.source, s, dims_.padded, dims_.tokens, dims_.head, work);
    const GemmKernels& gemm = *cpu_.simd().gemm;
    const PanelCut cut{dims_.tokens};
    for (int64_t p = 0; p < cut.count(); ++p) {
      const int64_t j = cut.first(p), stride = cut.stride(p);
      gemm.pack_panel(b.f32 + j * b.stride, false, b.stride, /*transposed=*/true, dims_.head,
                      cut.width(p), work, stride);
      gemm.panel(a.f32, a.stride, work, stride, s + j, dims_.padded, dims_.tokens, dims_.head,
                 std::min(stride, dims_.padded - j), false);
    }
  }
  // c (tokens, head) = s b, s being (tokens, padded). b is read in place, up to a vector past its
  // end.
  void weigh(const float* s, const Matrix& b, const Matrix& c, float* work) const {
    if (tiled_)
      return multiply_tiles(scores_in(s), turned(b.source), c.f32, c.stride, dims_.head,
                            dims_.tokens, work);
    for (int64_t j = 0; j < dims_.head; j += kPanel)
      cpu_.simd().gemm->panel(s, dims_.padded, b.f32 + j, b.stride, c.f32 + j, c.stride,
                              dims_.tokens, dims_.tokens, std::min(kPanel, dims_.head - j), false);
  }
  // c (tokens, head) = s^T b.
  void weigh_transposed(const float* s, const Matrix& b, const Matrix& c, float* work) const {
    if (tiled_)
      return multiply_tiles(turned(scores_in(s)), turned(b.source), c.f32, c.stride, dims_.head,
                            dims_.tokens, work);
    for (int64_t j = 0; j < dims_.head; j += kPanel)
      cpu_.simd().gemm->columns(s, dims_.padded, b.f32 + j, b.stride, c.f32 + j, c.stride,
                                dims_.tokens, dims_.tokens, std::min(kPanel, dims_.head - j),
                                false);
  }
  int64_t work_floats() const {
    const int64_t tokens = dims_.tokens, head = dims_.head;
    if (tiled_) return packed_words(tokens, std::max(tokens, head)) + right_words();
    return kLastPanel * head;
  }

  CpuBackend& cpu_;
  Dims dims_;
  float scale_, drop_;
  uint32_t site_;
  TensorView rng_;
  bool tiled_;  // bf16 operands, multiplied as such
  const float *bias_, *mask_;
  int64_t masks_;

  static TileSource turned(TileSource s) { return s.along = !s.along, s; }

 private:
  TileSource scores_in(const float* s) const {
    return {{const_cast<float*>(s), DType::kF32}, 0, dims_.padded, /*along=*/true};
  }
  int64_t right_words() const {
    return std::max(packed_words(dims_.tokens, dims_.head), packed_words(dims_.head, dims_.tokens));
  }
  // c (tokens, columns) = a b, after both were rounded to bf16.
  void multiply_tiles(const TileSource& a, const TileSource& b, float* c, int64_t ldc,
                      int64_t columns, int64_t depth, float* work) const {
    auto *right = reinterpret_cast<uint32_t*>(work), *left = right + right_words();
    cpu_.simd().tiles->pack(a, TileSide::kLeft, dims_.tokens, depth, left, band_words(depth));
    cpu_.simd().tiles->pack(b, TileSide::kRight, columns, depth, right, band_words(depth));
    cpu_.tiles()->multiply({.a = left,
                            .b = right,
                            .c = c,
                            .ldc = ldc,
                            .rows = dims_.tokens,
                            .columns = columns,
                            .depth = depth,
                            .accumulate = false});
  }
};

class AttentionKernel final : public HeadKernel {
 public:
  AttentionKernel(CpuBackend& cpu, const Attention& op, const Operands& io)
      : HeadKernel(cpu, io.in[Attention::kQkv], op.heads, op.drop, op.site,
                   extras<Attention>(io.in)),
        qkv_(io.in[Attention::kQkv]),
        y_(io.out[Attention::kY]),
        lse_(operand(io.out, Attention::kLse)),
        queries_{dims_.tokens, dims_.tokens} {
    const Dims& d = dims_;
    const int64_t whole = tiled_ ? kTile : 1;
    if (d.batch * d.heads < kFewHeads && (!has_offsets() || tiled_))
      queries_.size = round_up(ceil_div(d.tokens, 2), whole);
    const int64_t plain =
        4 * d.tokens * d.head + key_floats() + value_floats() + kQueries * d.padded + d.padded;
    reserve(side_by_side() ? lane_scratch(d.tokens) : 256 + (tiled_ ? tile_floats() : plain));
  }

  void launch() override {
    DropSite site{};
    const DropSite* drop = read_drop(site);
    if (side_by_side()) {
      const LaneAttentionArgs args{floats(qkv_), floats(y_),   {},          {},         lse_.f32(),
                                   dims_.batch,  dims_.tokens, dims_.heads, dims_.head, drop};
      cpu_.pool().run(dims_.groups(), [&](int64_t group, int thread) {
        cpu_.simd().attention->lanes_forward(args, group,
                                             reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
      });
      return;
    }
    // A thread keeps to its part of the rows, as in the layers before and after.
    const int64_t parts = queries_.count(), heads = dims_.heads;
    cpu_.pool().run(dims_.batch * heads * parts, [&](int64_t task, int thread) {
      const int64_t part = task / heads % parts, first = queries_.first(part);
      head(task / (heads * parts) * heads + task % heads, {first, queries_.last(part) - first},
           drop, thread);
    });
  }

 private:
  // Where there are only a few heads, one is cut in two, so that threads finish together.
  static constexpr int64_t kFewHeads = 12;
  // A head goes through the caches a block of queries at a time: its scores stay in the second
  // level, beside keys and values, which are packed once.
  static constexpr int64_t kQueries = 48;
  void head(int64_t number, Rows rows, const DropSite* drop, int thread) {
    const Dims& d = dims_;
    const int64_t b = number / d.heads, h = number % d.heads;
    if (tiled_) return head_of_tiles(b, h, rows, drop, thread);
    Pieces scratch{reinterpret_cast<float*>(cpu_.thread_scratch(thread))};
    const auto part = queries_keys_values(qkv_, b, h, scratch);
    float *keys = scratch.take(key_floats()), *s = scratch.take(kQueries * d.padded),
          *values = scratch.take(value_floats()), *room = scratch.take(d.tokens * d.head),
          *factors = scratch.take(d.padded + 32);
    pack_keys(part[1], keys);
    if (y_) pack_values(part[2], values);
    const Matrix y = place(y_, 1, 0, b, h, room);
    const Chunks blocks{rows.count, kQueries};
    for (int64_t i = 0; i < blocks.count(); ++i) {
      const Rows block{rows.first + blocks.first(i), blocks.last(i) - blocks.first(i)};
      const int64_t row = number * d.tokens + block.first;
      score(part[0], keys, s, block);
      const float scale = biased(s, b, h, block);
      cpu_.simd().attention->softmax(s, block.count, d.tokens, d.padded, scale, row, drop,
                                     lse_ ? lse_.f32() + row : nullptr, factors);
      if (!y_) continue;
      weigh(s, values, y, block);
      deliver(y, block);
    }
  }

  int64_t key_floats() const { return (PanelCut{dims_.tokens}.count() * kPanel + 16) * dims_.head; }
  void pack_keys(const Matrix& k, float* to) const {
    const PanelCut cut{dims_.tokens};
    for (int64_t p = 0; p < cut.count(); ++p)
      cpu_.simd().gemm->pack_panel(k.f32 + cut.first(p) * k.stride, false, k.stride,
                                   /*transposed=*/true, dims_.head, cut.width(p),
                                   to + cut.first(p) * dims_.head, cut.stride(p));
  }
  // s (rows, padded) = queries keys^T.
  void score(const Matrix& queries, const float* keys, float* s, Rows rows) const {
    const PanelCut cut{dims_.tokens};
    for (int64_t p = 0; p < cut.count(); ++p) {
      const int64_t j = cut.first(p), stride = cut.stride(p);
      cpu_.simd().gemm->panel(queries.f32 + rows.first * queries.stride, queries.stride,
                              keys + j * dims_.head, stride, s + j, dims_.padded, rows.count,
                              dims_.head, std::min(stride, dims_.padded - j), false);
    }
  }
  int64_t value_floats() const { return ceil_div(dims_.head, kPanel) * kPanel * dims_.tokens; }
  void pack_values(const Matrix& v, float* to) const {
    for (int64_t j = 0; j < dims_.head; j += kPanel)
      cpu_.simd().gemm->pack_panel(v.f32 + j, false, v.stride, /*transposed=*/false, dims_.tokens,
                                   std::min(kPanel, dims_.head - j), to + j * dims_.tokens, kPanel);
  }
  // y = s values, of some rows.
  void weigh(const float* s, const float* values, const Matrix& y, Rows rows) const {
    for (int64_t j = 0; j < dims_.head; j += kPanel)
      cpu_.simd().gemm->panel(s, dims_.padded, values + j * dims_.tokens, kPanel,
                              y.f32 + rows.first * y.stride + j, y.stride, rows.count, dims_.tokens,
                              std::min(kPanel, dims_.head - j), false);
  }

  int64_t tile_floats() const {
    const Dims& d = dims_;
    return packed_words(d.tokens, d.head) + packed_words(d.head, d.tokens) +
           band_words(std::max(d.tokens, d.head)) + kBand * (d.padded + d.head + 1) + d.padded;
  }
  // The same with keys and values packed as tiles, a band of queries at a time: its scores stay in
  // the first-level cache.
  void head_of_tiles(int64_t b, int64_t h, Rows rows, const DropSite* drop, int thread) {
    const Dims& d = dims_;
    const AttentionKernels& simd = *cpu_.simd().attention;
    Pieces scratch{reinterpret_cast<float*>(cpu_.thread_scratch(thread))};
    const auto take_words = [&](int64_t lines, int64_t depth) {
      return reinterpret_cast<uint32_t*>(scratch.take(packed_words(lines, depth)));
    };
    uint32_t *keys = take_words(d.tokens, d.head), *values = take_words(d.head, d.tokens),
             *left = take_words(kBand, std::max(d.tokens, d.head));
    float *s = scratch.take(kBand * d.padded), *room = scratch.take(kBand * d.head),
          *inverse = scratch.take(kBand), *factors = scratch.take(d.padded + 32);
    const auto part = [&](int64_t i) { return place(qkv_, 3, i, b, h, nullptr).source; };
    const auto pack = [&](const TileSource& from, TileSide side, int64_t lines, int64_t depth,
                          uint32_t* to) {
      cpu_.simd().tiles->pack(from, side, lines, depth, to, band_words(depth));
    };
    const auto multiply = [&](const uint32_t* right, float* c, int64_t ldc, int64_t count,
                              int64_t columns, int64_t depth) {
      cpu_.tiles()->multiply({left, right, c, ldc, count, columns, depth, /*accumulate=*/false});
    };
    pack(part(1), TileSide::kRight, d.tokens, d.head, keys);
    pack(turned(part(2)), TileSide::kRight, d.head, d.tokens, values);
    const TileSource y = place(y_, 1, 0, b, h, nullptr).source;
    for (int64_t end = rows.first + rows.count, first = rows.first; first < end; first += kBand) {
      const int64_t count = std::min(kBand, end - first);
      const int64_t row = (b * d.heads + h) * d.tokens + first;
      TileSource queries = part(0);
      queries.at += first * queries.stride;
      pack(queries, TileSide::kLeft, count, d.head, left);
      multiply(keys, s, d.padded, count, d.tokens, d.head);
      const float scale = biased(s, b, h, {first, count});
      simd.softmax_narrow(s, count, d.tokens, d.padded, scale, row, drop,
                          lse_ ? lse_.f32() + row : nullptr, inverse, factors);
      if (!y_) continue;
      pack({{s, DType::kBF16}, 0, 2 * d.padded, /*along=*/true}, TileSide::kLeft, count, d.tokens,
           left);
      multiply(values, room, d.head, count, d.head, d.tokens);
      simd.scatter(room, y.x, y.at + first * y.stride, y.stride, count, d.head, inverse);
    }
  }

  TensorView qkv_, y_, lse_;
  Chunks queries_;  // of a head, in a task
};

class AttentionBwdKernel final : public HeadKernel {
 public:
  AttentionBwdKernel(CpuBackend& cpu, const AttentionBwd& op, const Operands& io)
      : HeadKernel(cpu, io.in[AttentionBwd::kQkv], op.heads, op.drop, op.site,
                   extras<AttentionBwd>(io.in)),
        dy_(io.in[AttentionBwd::kDy]),
        qkv_(io.in[AttentionBwd::kQkv]),
        y_(io.in[AttentionBwd::kY]),
        lse_(io.in[AttentionBwd::kLse]),
        dqkv_(io.out[AttentionBwd::kDqkv]),
        dbias_(f32_only(operand(io.out, AttentionBwd::kDbias))),
        // Items whose bias gradients one task adds up; the sums of tasks are added in order.
        parts_{dims_.batch, dbias_ ? ceil_div(dims_.batch, kParts) : 1} {
    const Dims& d = dims_;
    if (dbias_)
      cpu_.reserve_shared(static_cast<size_t>(parts_.count() * d.heads * square()) * sizeof(float));
    reserve(side_by_side()
                ? lane_scratch(d.tokens)
                : 6 * d.tokens * d.head + 2 * d.tokens * d.padded + work_floats() + d.padded + 512);
  }

  void launch() override {
    DropSite site{};
    const DropSite* drop = read_drop(site);
    if (side_by_side()) {
      const LaneAttentionArgs args{floats(qkv_), floats(y_),  floats(dy_),  floats(dqkv_),
                                   lse_.f32(),   dims_.batch, dims_.tokens, dims_.heads,
                                   dims_.head,   drop};
      cpu_.pool().run(dims_.groups(), [&](int64_t group, int thread) {
        cpu_.simd().attention->lanes_backward(
            args, group, reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
      });
      return;
    }
    auto* sums = reinterpret_cast<float*>(cpu_.shared_scratch());
    const int64_t heads = dims_.heads;
    cpu_.pool().run(parts_.count() * heads, [&](int64_t task, int thread) {
      const int64_t part = task / heads, h = task % heads;
      float* dbias = dbias_ ? sums + task * square() : nullptr;
      if (dbias) std::fill_n(dbias, square(), 0.f);
      for (int64_t b = parts_.first(part); b < parts_.last(part); ++b)
        head(b, h, drop, dbias, thread);
    });
    if (!dbias_) return;
    cpu_.pool().run(heads, [&](int64_t h, int) {
      std::fill_n(dbias_ + h * square(), square(), 0.f);
      cpu_.simd().elementwise->accumulate(dbias_ + h * square(), sums + h * square(),
                                          parts_.count(), heads * square(), square());
    });
  }

 private:
  static constexpr int64_t kParts = 16;

  void head(int64_t b, int64_t h, const DropSite* drop, float* dbias, int thread) {
    const Dims& d = dims_;
    const int64_t number = b * d.heads + h, values = d.tokens * d.head;
    const AttentionKernels& simd = *cpu_.simd().attention;
    Pieces scratch{reinterpret_cast<float*>(cpu_.thread_scratch(thread))};
    const auto part = queries_keys_values(qkv_, b, h, scratch);
    const Matrix y = matrix(y_, 1, 0, b, h, scratch.take(values)),
                 dy = matrix(dy_, 1, 0, b, h, scratch.take(values));
    float *room = scratch.take(values), *s = scratch.take(d.tokens * d.padded),
          *dp = scratch.take(d.tokens * d.padded), *work = scratch.take(work_floats());
    scores(part[0], part[1], s, work);
    scores(dy, part[2], dp, work);
    const float scale = biased(s, b, h, all());
    simd.softmax_bwd(s, dp, d.tokens, d.padded, scale, number * d.tokens, drop,
                     lse_.f32() + number * d.tokens, y.f32, y.stride, dy.f32, dy.stride, d.head,
                     scratch.take(d.padded + 32));
    if (has_offsets()) simd.add_bias_bwd(dp, d.tokens, d.padded, scale_, dbias);
    if (!dqkv_) return;
    const auto result = [&](int64_t which, const auto& product) {
      const Matrix m = place(dqkv_, 3, which, b, h, room);
      product(m);
      deliver(m, all());
    };
    result(2, [&](const Matrix& dv) { weigh_transposed(s, dy, dv, work); });
    result(1, [&](const Matrix& dk) { weigh_transposed(dp, part[0], dk, work); });
    result(0, [&](const Matrix& dq) { weigh(dp, part[1], dq, work); });
  }

  TensorView dy_, qkv_, y_, lse_, dqkv_;
  float* dbias_;
  Chunks parts_;
};

// The matrix (tokens, tokens) of each head that the other kernels keep in scratch, written out: the
// weights, or where dy is given their gradient dy v^T.
class AttentionMatrixKernel final : public HeadKernel {
 public:
  // `in`: AttentionProbs' inputs.
  AttentionMatrixKernel(CpuBackend& cpu, const TensorView& dy, const std::vector<TensorView>& in,
                        int64_t heads, const TensorView& out)
      : HeadKernel(cpu, in[AttentionProbs::kQkv], heads, 0, 0, extras<AttentionProbs>(in)),
        dy_(dy),
        qkv_(in[AttentionProbs::kQkv]),
        out_(out) {
    const Dims& d = dims_;
    reserve(4 * d.tokens * d.head + d.tokens * d.padded + work_floats() + d.padded + 256);
  }

  void launch() override {
    cpu_.pool().run(dims_.batch * dims_.heads,
                    [&](int64_t number, int thread) { head(number, thread); });
  }

 private:
  void head(int64_t number, int thread) {
    const Dims& d = dims_;
    const int64_t b = number / d.heads, h = number % d.heads;
    const AttentionKernels& simd = *cpu_.simd().attention;
    Pieces scratch{reinterpret_cast<float*>(cpu_.thread_scratch(thread))};
    const auto part = queries_keys_values(qkv_, b, h, scratch);
    float *dy = scratch.take(d.tokens * d.head), *s = scratch.take(d.tokens * d.padded),
          *work = scratch.take(work_floats());
    if (dy_) {
      scores(matrix(dy_, 1, 0, b, h, dy), part[2], s, work);
    } else {
      scores(part[0], part[1], s, work);
      const float scale = biased(s, b, h, all());
      simd.softmax(s, d.tokens, d.tokens, d.padded, scale, 0, nullptr, nullptr,
                   scratch.take(d.padded + 32));
    }
    float* out = f32_only(out_) + number * d.tokens * d.tokens;
    for (int64_t t = 0; t < d.tokens; ++t)
      std::copy_n(s + t * d.padded, d.tokens, out + t * d.tokens);
  }

  TensorView dy_, qkv_, out_;
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const AttentionProbs& op, const Operands& io) {
  const auto& [heads] = op;
  return std::make_unique<AttentionMatrixKernel>(cpu, TensorView{}, io.in, heads,
                                                 io.out[AttentionProbs::kProbs]);
}
KernelPtr lower(CpuBackend& cpu, const AttentionProbsGrad& op, const Operands& io) {
  const auto& [heads] = op;
  return std::make_unique<AttentionMatrixKernel>(
      cpu, io.in[AttentionProbsGrad::kDy],
      std::vector{io.in[AttentionProbsGrad::kQkv], TensorView{}}, heads,
      io.out[AttentionProbsGrad::kDprobs]);
}
KernelPtr lower(CpuBackend& cpu, const Attention& op, const Operands& io) {
  [[maybe_unused]] const auto& [heads, drop, site] = op;
  return std::make_unique<AttentionKernel>(cpu, op, io);
}
KernelPtr lower(CpuBackend& cpu, const AttentionBwd& op, const Operands& io) {
  [[maybe_unused]] const auto& [heads, drop, site] = op;
  return std::make_unique<AttentionBwdKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
