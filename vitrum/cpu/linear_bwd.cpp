#include "vitrum/cpu/linear_bwd.h"

#include "vitrum/core/ceil_div.h"

namespace vitrum::cpu {
namespace {

// Rows are taken in chunks: what a chunk computes and packs is read again while in the cache.
// Unless what is computed has to be packed, one loop has dw of a chunk beside the making of the
// next, and threads wait for each other once a chunk.
class LinearBwdKernel final : public Kernel {
 public:
  LinearBwdKernel(CpuBackend& cpu, const LinearBwd& op, const Operands& io)
      : cpu_(cpu), pre_(op, io), layer_(cpu, io), late_(!pre_.direct && layer_.packs_dpre()) {
    const int64_t m = io.in[LinearBwd::kDy].shape.rows();
    const bool at_once = pre_.direct && layer_.reads_once();
    chunks_ = {m, at_once ? m : rows_per_chunk(m, layer_.n(), layer_.k())};
    dpre_at_ = layer_.place(0, chunks_.size, slots());
    const int64_t dpre = pre_.direct ? 0 : slots() * chunks_.size * layer_.n();
    cpu.reserve_shared(static_cast<size_t>(dpre_at_ + dpre) * sizeof(float));
    cpu.reserve_per_thread(layer_.thread_bytes());
  }
  void launch() override;

 private:
  // Short chunks keep what is packed in the second-level cache; but each chunk reads and writes all
  // of dw, so where that is large they are long enough for the products to outweigh it.
  static int64_t rows_per_chunk(int64_t rows, int64_t n, int64_t k) {
    constexpr int64_t kUnit = 96;
    const int64_t least = n * k <= (1 << 18) ? 2 * kUnit : 8 * kUnit;
    const int64_t wanted = std::clamp<int64_t>((int64_t{3} << 17) / (n + k), least, 16 * kUnit);
    const int64_t parts = ceil_div(rows, wanted);
    return (rows / parts + kUnit) / kUnit * kUnit;
  }
  int64_t slots() const { return late_ ? 1 : 2; }

  // Chunk c, empty where there is none.
  GradientRows part(int64_t c) const {
    if (c < 0 || c >= chunks_.count()) return {};
    const int64_t row = chunks_.first(c), slot = late_ ? 0 : c % 2;
    const float* dpre = pre_.direct ? pre_.dy.f32() + row * layer_.n()
                                    : shared_ + dpre_at_ + slot * chunks_.size * layer_.n();
    return {dpre, row, chunks_.last(c) - row, slot};
  }
  // Its tasks of each kind.
  auto make(int64_t c) {
    const GradientRows part = this->part(c);
    const Chunks blocks{pre_.direct ? 0 : part.rows, std::max<int64_t>(1, 16384 / layer_.n())};
    return TaskPart{blocks.count(), [this, part, blocks](int64_t t, int thread) {
                      const int64_t first = blocks.first(t), n = layer_.n();
                      cpu_.simd().linear->gradient(
                          args_, part.row + first, blocks.last(t) - first,
                          {const_cast<float*>(part.dpre) + first * n, DType::kF32},
                          reinterpret_cast<float*>(cpu_.thread_scratch(thread)));
                    }};
  }
  auto pack_x(int64_t c) {
    const GradientRows part = this->part(c);
    return TaskPart{part.rows > 0 ? layer_.x_tasks() : 0,
                    [this, part](int64_t t, int) { layer_.x_task(part, t); }};
  }
  auto columns(int64_t c) {
    const GradientRows part = this->part(c);
    return TaskPart{part.rows > 0 ? layer_.column_tasks() : 0,
                    [this, part](int64_t t, int) { layer_.column_task(part, t); }};
  }
  auto inputs(int64_t c) {
    const GradientRows part = this->part(c);
    return TaskPart{part.rows > 0 ? layer_.input_tasks(part.rows) : 0,
                    [this, part](int64_t t, int thread) { layer_.input_task(part, t, thread); }};
  }
  auto weights(int64_t c) {
    const GradientRows part = this->part(c);
    return TaskPart{part.rows > 0 ? layer_.weight_tasks() : 0,
                    [this, part](int64_t t, int) { layer_.weight_task(part, t); }};
  }

  CpuBackend& cpu_;
  PreActivationGradient pre_;
  LayerGradients layer_;
  bool late_;  // dpre is computed, and then packed
  Chunks chunks_;
  int64_t dpre_at_ = 0;  // in shared scratch, in floats
  LinearGradArgs args_{};
  float* shared_ = nullptr;
};

void LinearBwdKernel::launch() {
  shared_ = reinterpret_cast<float*>(cpu_.shared_scratch());
  args_ = pre_.args(layer_.n());
  layer_.begin(shared_);
  const int64_t count = chunks_.count();
  run_parts(cpu_, TaskPart{layer_.setup_tasks(), [&](int64_t t, int) { layer_.setup(t); }});
  if (late_)
    for (int64_t c = 0; c <= count; ++c) {
      run_parts(cpu_, weights(c - 1), make(c));
      run_parts(cpu_, inputs(c), pack_x(c), columns(c));
    }
  else if (pre_.direct)
    for (int64_t c = -1; c < count; ++c)
      run_parts(cpu_, weights(c), inputs(c), pack_x(c + 1), columns(c + 1));
  else
    for (int64_t c = -1; c < count; ++c)
      run_parts(cpu_, weights(c), inputs(c), make(c + 1), columns(c), pack_x(c + 1));
  run_parts(cpu_, TaskPart{layer_.finish_tasks(), [&](int64_t t, int) { layer_.finish(t); }});
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const LinearBwd& op, const Operands& io) {
  [[maybe_unused]] const auto& [act, drop, site] = op;
  if (takes_tiles(cpu,
                  {io.in[LinearBwd::kDy], io.in[LinearBwd::kX], io.in[LinearBwd::kWeight],
                   io.in[LinearBwd::kSaved] ? io.in[LinearBwd::kSaved] : io.in[LinearBwd::kDy]}))
    return lower_tiles(cpu, op, io);
  return std::make_unique<LinearBwdKernel>(cpu, op, io);
}

}  // namespace vitrum::cpu
