// The products of a linear layer's backward pass, as tasks that share parallel loops.
#pragma once
#include "vitrum/cpu/gemm.h"
#include "vitrum/cpu/linear.h"

namespace vitrum::cpu {

// dy of a layer, and what makes dpre of it: the gradient behind dropout and activation.
struct PreActivationGradient {
  LinearBwd op;
  TensorView dy, saved, rng;
  bool direct;  // dy is dpre
  DropSite site{};

  PreActivationGradient(const LinearBwd& op_, const Operands& io)
      : op(op_),
        dy(io.in[LinearBwd::kDy]),
        saved(io.in[LinearBwd::kSaved]),
        rng(io.in[LinearBwd::kRng]),
        direct(op.act == Act::kNone && op.drop == 0 && dy.dtype == DType::kF32) {}
  LinearGradArgs args(int64_t width) {
    if (op.drop > 0) site = drop_site(random_state(rng), op.drop, op.site);
    return {floats(dy), floats(saved), op.act, op.drop > 0 ? &site : nullptr, width};
  }
};

// A chunk of rows of dpre (M, N), which is dy behind dropout and activation.
struct GradientRows {
  const float* dpre = nullptr;
  int64_t row = 0, rows = 0;
  int64_t slot = 0;  // which of the places for what is packed is this chunk's
};

// dx (M, K) = dpre w, dw (N, K) += dpre^T x, dbias += column sums of dpre, chunk by chunk of rows.
// What few panels would use is not packed but read in place: dpre where dw is narrow, and x, for
// the transpose of dw, where dw has one panel of rows; x also where its rows lie so far apart that
// a slice of a panel has the whole first-level cache, not a part of its sets. Every sum is one
// chain in the order of rows, so results do not depend on the chunks.
class LayerGradients {
 public:
  LayerGradients(CpuBackend& cpu, const Operands& io);
  // Its part of shared scratch begins at `at`, in floats; where it ends. Two chunks may have things
  // packed at the same time where there are two slots.
  int64_t place(int64_t at, int64_t rows_per_chunk, int64_t slots);
  void begin(float* shared) { shared_ = shared; }

  // Before the first chunk: w packed, dw turned.
  int64_t setup_tasks() const { return w_panels() + turns().count(); }
  void setup(int64_t task);
  // After the last chunk: dw turned back.
  int64_t finish_tasks() const { return turned_ ? Chunks{n_, 16}.count() : 0; }
  void finish(int64_t task);

  // Of a chunk: x packed; the sums of columns of dpre, and those packed; dx.
  int64_t x_tasks() const { return pack_x_ ? panels() : 0; }
  void x_task(const GradientRows& part, int64_t task);
  int64_t column_tasks() const { return columns().count(); }
  void column_task(const GradientRows& part, int64_t task);
  int64_t input_tasks(int64_t rows) const {
    return input_rows(rows).count() * input_panels().count();
  }
  void input_task(const GradientRows& part, int64_t task, int thread);
  // And dw, after all that is packed.
  int64_t weight_tasks() const { return weight_rows().count() * weight_panels().count(); }
  void weight_task(const GradientRows& part, int64_t task);

  bool packs_dpre() const { return pack_dpre_; }
  // Whether dw is one panel that reads everything in place: chunks would gain nothing.
  bool reads_once() const { return !pack_x_ && !pack_dpre_ && (turned_ || panels() == 1); }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  size_t thread_bytes() const {
    return static_cast<size_t>(std::max(kRowBlock * kPanel, n_ + 16)) * sizeof(float);
  }

 private:
  int64_t panels() const { return packed_w_.panels(); }
  int64_t w_panels() const { return dx_ ? panels() : 0; }
  Chunks turns() const { return {turned_ ? k_ : 0, 256}; }
  Chunks columns() const;
  Chunks input_panels() const { return {panels(), panels() >= 8 ? 4 : 1}; }
  Chunks input_rows(int64_t rows) const;
  Chunks weight_rows() const;
  Chunks weight_panels() const;
  void pack_w(int64_t p);
  void input_gradient(const GradientRows& part, int64_t first, int64_t rows, int64_t p, int thread);
  void weight_panel(const GradientRows& part, int64_t p, int64_t first, int64_t count);
  float* packed_x(const GradientRows& part, int64_t p) const {
    return shared_ + x_at_ + part.slot * x_size_ + p * kPanel * part.rows;
  }
  float* strips(const GradientRows& part, int64_t column) const {
    return shared_ + strips_at_ + part.slot * strips_size_ + column * part.rows;
  }

  CpuBackend& cpu_;
  TensorView x_, w_, dx_, dw_, dbias_;
  int64_t n_, k_;
  PackedB packed_w_;  // the right operand of dx; its panels also count those of x
  bool turned_, pack_x_, pack_dpre_;
  int64_t w_at_ = 0, x_at_ = 0, turned_at_ = 0, strips_at_ = 0;  // in shared scratch, in floats
  int64_t x_size_ = 0, strips_size_ = 0;                         // of a slot
  float* shared_ = nullptr;
};

}  // namespace vitrum::cpu
