#include "vitrum/cpu/batch_norm.h"

#include <cmath>

namespace vitrum::cpu {
namespace {

double reciprocal_deviation(float var, float eps) {
  return 1 / std::sqrt(static_cast<double>(var) + static_cast<double>(eps));
}

// Rows (B * positions) of `width` channels, and which samples of them count.
struct Rows {
  int64_t samples, positions, width;
  const float* weight;  // null: all count

  Rows(const TensorView& x, const TensorView& w)
      : samples(x.shape[0]),
        positions(x.shape.rows() / samples),
        width(x.shape[-1]),
        weight(f32_only(w)) {}
  bool counts(int64_t sample) const { return !weight || weight[sample] > 0; }
  double counted() const {
    int64_t n = 0;
    for (int64_t b = 0; b < samples; ++b) n += counts(b);
    return static_cast<double>(n * positions);
  }
  bool past() const { return width % 16 == 0 && exceeds_caches(samples * positions * width); }
  // Few rows a chunk: its sums are f32, and only what they leave out of account is small.
  Chunks chunks() const {
    return {samples * positions, std::clamp<int64_t>((1 << 15) / width, 16, 512)};
  }
  // body(first, last, counted) over the runs of [first, last) that belong to one sample each.
  template <class Body>
  void for_samples(int64_t first, int64_t last, const Body& body) const {
    for (int64_t at = first, end; at < last; at = end) {
      end = std::min(last, (at / positions + 1) * positions);
      body(at, end, counts(at / positions));
    }
  }
};

constexpr int64_t kColumns = 128;  // whose partial sums one task adds up

class BatchNormKernel final : public Kernel {
 public:
  BatchNormKernel(CpuBackend& cpu, const BatchNorm& op, const Operands& io)
      : cpu_(cpu),
        op_(op),
        x_(io.in[BatchNorm::kX]),
        skip_(operand(io.in, BatchNorm::kSkip)),
        y_(io.out[BatchNorm::kY]),
        w_(f32_only(io.in[BatchNorm::kWeight])),
        bias_(f32_only(io.in[BatchNorm::kBias])),
        mean_out_(f32_only(operand(io.out, BatchNorm::kMean))),
        var_out_(f32_only(operand(io.out, BatchNorm::kVar))),
        rows_(io.in[BatchNorm::kX], operand(io.in, BatchNorm::kSampleWeight)),
        chunks_(rows_.chunks()),
        counts_(static_cast<size_t>(chunks_.count())),
        mean_(static_cast<size_t>(rows_.width)),
        var_(mean_.size()),
        affine_(rows_.width) {
    cpu.reserve_shared(static_cast<size_t>(chunks_.count() * 3 * rows_.width) * sizeof(float));
  }

  void launch() override {
    measure();
    if (mean_out_) std::copy(mean_.begin(), mean_.end(), mean_out_);
    if (var_out_) std::copy(var_.begin(), var_.end(), var_out_);
    if (!y_) return;
    affine_.set(w_, bias_, mean_.data(), var_.data(), op_.eps);
    const ChannelNormArgs args{.y = floats(y_),
                               .skip = floats(skip_),
                               .scale = affine_.scale.data(),
                               .shift = affine_.shift.data(),
                               .act = op_.act,
                               .width = rows_.width,
                               .past = rows_.past()};
    for_chunks(cpu_, chunks_, [&](int64_t first, int64_t last, int64_t, int) {
      cpu_.simd().batch_norm->apply(args, floats(x_), first, last);
    });
  }

 private:
  Array row(int64_t r) const {
    const int64_t bytes = rows_.width * static_cast<int64_t>(size_of(x_.dtype));
    return {static_cast<std::byte*>(x_.data) + r * bytes, x_.dtype};
  }

  // Of each chunk a shift near its mean (its first row that counts), and from there the sums of
  // deviations and of their squares: nothing cancels, and x is read once.
  void measure() {
    auto* partial = reinterpret_cast<float*>(cpu_.shared_scratch());
    const int64_t width = rows_.width;
    for_chunks(cpu_, chunks_, [&](int64_t first, int64_t last, int64_t chunk, int) {
      float *shift = partial + chunk * 3 * width, *sum = shift + width, *squares = sum + width;
      std::fill_n(shift, 3 * width, 0.f);
      double& count = counts_[static_cast<size_t>(chunk)] = 0;
      rows_.for_samples(first, last, [&](int64_t from, int64_t to, bool counted) {
        if (!counted) return;
        if (count == 0) cpu_.simd().elementwise->convert(row(from), {shift, DType::kF32}, 0, width);
        count += static_cast<double>(to - from);
        cpu_.simd().batch_norm->moments(floats(x_), width, shift, from, to, sum, squares);
      });
    });
    for_chunks(cpu_, {width, kColumns}, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t k = first; k < last; ++k) combine(partial, k);
    });
  }

  // The moments of all chunks, one after the other (Chan, Golub and LeVeque, 1979).
  void combine(const float* partial, int64_t k) {
    const std::vector<double>& counts = counts_;
    double n = 0, mean = 0, squares = 0;
    for (size_t c = 0; c < counts.size(); ++c) {
      if (counts[c] == 0) continue;
      const float* at = partial + static_cast<int64_t>(c) * 3 * rows_.width + k;
      const double own_sum = at[rows_.width], own_mean = at[0] + own_sum / counts[c];
      const double own_squares = at[2 * rows_.width] - own_sum * own_sum / counts[c];
      const double apart = own_mean - mean, both = n + counts[c];
      mean += apart * counts[c] / both;
      squares += own_squares + apart * apart * n * counts[c] / both;
      n = both;
    }
    mean_[static_cast<size_t>(k)] = static_cast<float>(mean);
    var_[static_cast<size_t>(k)] = static_cast<float>(std::max(squares, 0.0) / n);
  }

  CpuBackend& cpu_;
  BatchNorm op_;
  TensorView x_, skip_, y_;
  const float *w_, *bias_;
  float *mean_out_, *var_out_;
  Rows rows_;
  Chunks chunks_;
  std::vector<double> counts_;  // of each chunk, the rows that count
  std::vector<float> mean_, var_;
  ChannelAffine affine_;
};

class BatchNormBwdKernel final : public Kernel {
 public:
  BatchNormBwdKernel(CpuBackend& cpu, const BatchNormBwd& op, const Operands& io)
      : cpu_(cpu),
        op_(op),
        w_(f32_only(io.in[BatchNormBwd::kWeight])),
        var_(f32_only(io.in[BatchNormBwd::kVar])),
        dw_(f32_only(operand(io.out, BatchNormBwd::kDweight))),
        dbias_(f32_only(operand(io.out, BatchNormBwd::kDbias))),
        rows_(io.in[BatchNormBwd::kX], operand(io.in, BatchNormBwd::kSampleWeight)),
        chunks_(rows_.chunks()),
        scale_(static_cast<size_t>(rows_.width)),
        offset_(scale_.size()),
        slope_(scale_.size()) {
    args_ = {.dy = floats(io.in[BatchNormBwd::kDy]),
             .x = floats(io.in[BatchNormBwd::kX]),
             .y = op.act == Act::kRelu ? floats(io.in[BatchNormBwd::kY]) : Array{},
             .dx = floats(io.out[BatchNormBwd::kDx]),
             .dskip = floats(operand(io.out, BatchNormBwd::kDskip)),
             .mean = f32_only(io.in[BatchNormBwd::kMean]),
             .scale = scale_.data(),
             .offset = offset_.data(),
             .slope = slope_.data(),
             .width = rows_.width,
             .past = rows_.past()};
    cpu.reserve_shared(static_cast<size_t>(chunks_.count() * 2 * rows_.width) * sizeof(float));
  }

  void launch() override {
    if (args_.dx.data || dw_ || dbias_) measure();
    if (!args_.dx.data && !args_.dskip.data) return;
    for_chunks(cpu_, chunks_, [&](int64_t first, int64_t last, int64_t, int) {
      rows_.for_samples(first, last, [&](int64_t from, int64_t to, bool counted) {
        cpu_.simd().batch_norm->apply_bwd(args_, counted, from, to);
      });
    });
  }

 private:
  void measure() {
    auto* partial = reinterpret_cast<float*>(cpu_.shared_scratch());
    const int64_t width = rows_.width;
    for_chunks(cpu_, chunks_, [&](int64_t first, int64_t last, int64_t chunk, int) {
      float* sums = partial + chunk * 2 * width;
      std::fill_n(sums, 2 * width, 0.f);
      cpu_.simd().batch_norm->moments_bwd(args_, first, last, sums, sums + width);
    });
    const double n = rows_.counted();
    for_chunks(cpu_, {width, kColumns}, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t k = first; k < last; ++k) combine(partial, n, k);
    });
  }

  void combine(const float* partial, double n, int64_t k) {
    double sum = 0, product = 0;
    for (int64_t c = 0; c < chunks_.count(); ++c) {
      sum += static_cast<double>(partial[c * 2 * rows_.width + k]);
      product += static_cast<double>(partial[(c * 2 + 1) * rows_.width + k]);
    }
    const double rstd = reciprocal_deviation(var_[k], op_.eps),
                 scale = static_cast<double>(w_[k]) * rstd;
    if (dw_) dw_[k] += static_cast<float>(product * rstd);
    if (dbias_) dbias_[k] += static_cast<float>(sum);
    const auto at = static_cast<size_t>(k);
    scale_[at] = static_cast<float>(scale);
    offset_[at] = static_cast<float>(scale * sum / n);
    slope_[at] = static_cast<float>(scale * rstd * rstd * product / n);
  }

  CpuBackend& cpu_;
  BatchNormBwd op_;
  const float *w_, *var_;
  float *dw_, *dbias_;
  Rows rows_;
  Chunks chunks_;
  std::vector<float> scale_, offset_, slope_;
  BatchNormBwdArgs args_{};
};

}  // namespace

void ChannelAffine::set(const float* w, const float* bias, const float* mean, const float* var,
                        float eps) {
  for (size_t k = 0; k < scale.size(); ++k) {
    const double factor = static_cast<double>(w[k]) * reciprocal_deviation(var[k], eps);
    scale[k] = static_cast<float>(factor);
    shift[k] =
        static_cast<float>(static_cast<double>(bias[k]) - static_cast<double>(mean[k]) * factor);
  }
}

KernelPtr lower(CpuBackend& cpu, const BatchNorm& op, const Operands& io) {
  [[maybe_unused]] const auto& [eps, act] = op;
  return std::make_unique<BatchNormKernel>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const BatchNormBwd& op, const Operands& io) {
  [[maybe_unused]] const auto& [eps, act] = op;
  return std::make_unique<BatchNormBwdKernel>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const FrozenBatchNorm& op, const Operands& io) {
  const auto& [eps, act] = op;
  const int64_t width = io.in[FrozenBatchNorm::kX].shape[-1];
  const Chunks chunks = chunk_rows(io.in[FrozenBatchNorm::kX].shape.rows(), width);
  return make_kernel(
      [&cpu, eps = eps, act = act, chunks, x = floats(io.in[FrozenBatchNorm::kX]),
       w = f32_only(io.in[FrozenBatchNorm::kWeight]),
       bias = f32_only(io.in[FrozenBatchNorm::kBias]),
       mean = f32_only(io.in[FrozenBatchNorm::kMean]), var = f32_only(io.in[FrozenBatchNorm::kVar]),
       skip = floats(operand(io.in, FrozenBatchNorm::kSkip)),
       y = floats(io.out[FrozenBatchNorm::kY]), affine = ChannelAffine(width)]() mutable {
        affine.set(w, bias, mean, var, eps);
        const ChannelNormArgs args{y,
                                   skip,
                                   affine.scale.data(),
                                   affine.shift.data(),
                                   act,
                                   static_cast<int64_t>(affine.scale.size())};
        for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
          cpu.simd().batch_norm->apply(args, x, first, last);
        });
      });
}

KernelPtr lower(CpuBackend&, const RunningStats& op, const Operands& io) {
  const auto& [momentum, samples, positions] = op;
  return make_kernel([momentum = static_cast<double>(momentum), samples = samples,
                      positions = positions, mean = f32_only(io.in[RunningStats::kMean]),
                      var = f32_only(io.in[RunningStats::kVar]),
                      weight = f32_only(operand(io.in, RunningStats::kSampleWeight)),
                      running_mean = f32_only(io.out[RunningStats::kRunningMean]),
                      running_var = f32_only(operand(io.out, RunningStats::kRunningVar)),
                      channels = io.in[RunningStats::kMean].shape.numel()] {
    int64_t counted = weight ? 0 : samples;
    for (int64_t b = 0; b < samples && weight; ++b) counted += weight[b] > 0;
    const auto n = static_cast<double>(counted * positions);
    const double unbiased = n / std::max(n - 1, 1.0);
    const auto move = [&](float& running, double batch) {
      running =
          static_cast<float>((1 - momentum) * static_cast<double>(running) + momentum * batch);
    };
    for (int64_t k = 0; k < channels; ++k) {
      if (running_mean) move(running_mean[k], static_cast<double>(mean[k]));
      if (running_var) move(running_var[k], static_cast<double>(var[k]) * unbiased);
    }
  });
}

}  // namespace vitrum::cpu
