// Max pooling and batch norm, as the card computes them, without one.
#include <gtest/gtest.h>

#include "tests/support/emulated_lowering.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/conv/max_pool.cuh"
#include "vitrum/cuda/norm/batch_norm.cuh"

namespace vitrum::cuda {
namespace {

// ---- max pooling ----

struct Pooling {
  int images, height, width, channels, kernel, stride, padding;

  int along(int size) const { return (size + 2 * padding - kernel) / stride + 1; }
  max_pool::Windows windows() const {
    return {height, width, channels, along(height), along(width), kernel, stride, padding};
  }
  size_t pixel(int image, int y, int x) const {
    return static_cast<size_t>((image * height + y) * width + x) * static_cast<size_t>(channels);
  }
};

// Where a window's first greatest value is.
size_t taken(const Pooling& p, const std::vector<bf16>& x, int image, int i, int j, int c) {
  size_t best = SIZE_MAX;
  for (int y = i * p.stride - p.padding; y < i * p.stride - p.padding + p.kernel; ++y)
    for (int xx = j * p.stride - p.padding; xx < j * p.stride - p.padding + p.kernel; ++xx) {
      if (y < 0 || y >= p.height || xx < 0 || xx >= p.width) continue;
      const size_t at = p.pixel(image, y, xx) + static_cast<size_t>(c);
      if (best == SIZE_MAX || value(x[at]) > value(x[best])) best = at;
    }
  return best;
}

template <int kKernel, int kStride>
void expect_pooled(const Pooling& p) {
  const max_pool::Windows w = p.windows();
  std::vector<bf16> x = noise(int64_t{p.images} * p.height * p.width * p.channels, 1, 1);
  for (bf16& v : x) v = value(v) > 0 ? v : bf16{0};  // behind a ReLU many are equal
  const std::vector<bf16> dy = noise(int64_t{p.images} * w.down * w.across * p.channels, 1, 2);
  std::vector<bf16> y(dy.size(), bf16{0xffff}), dx(x.size(), bf16{0xffff});
  for (uint32_t i = 0; i < y.size() / 8; ++i) max_pool::pool(w, x.data(), y.data(), i);
  const auto eights = static_cast<uint32_t>(p.channels / 8);
  const auto strips = static_cast<uint32_t>(p.images * strips_down(w) * blocks_across(w));
  for (uint32_t i = 0; i < strips * eights; ++i)
    max_pool::pool_back<kKernel, kStride>(w, dy.data(), x.data(), dx.data(), i);

  std::vector<float> expected(x.size(), 0.0f);
  size_t at = 0;
  for (int b = 0; b < p.images; ++b)
    for (int i = 0; i < w.down; ++i)
      for (int j = 0; j < w.across; ++j)
        for (int c = 0; c < p.channels; ++c, ++at) {
          const size_t best = taken(p, x, b, i, j, c);
          ASSERT_EQ(y[at].bits, x[best].bits) << at;
          expected[best] += from_bf16(dy[at].bits);
        }
  for (size_t k = 0; k < x.size(); ++k) ASSERT_EQ(dx[k].bits, to_bf16(expected[k])) << k;
}

TEST(EmulatedPool, GradientsGoToTheFirstOfTheGreatest) {
  expect_pooled<3, 2>({2, 7, 9, 16, 3, 2, 1});
  expect_pooled<3, 2>({1, 8, 6, 8, 3, 2, 1});
  expect_pooled<3, 2>({1, 37, 5, 8, 3, 2, 1});
  expect_pooled<3, 2>({1, 7, 8, 8, 3, 2, 0});
  expect_pooled<3, 2>({1, 1, 1, 8, 3, 2, 1});
  expect_pooled<2, 2>({2, 6, 5, 24, 2, 2, 0});
  expect_pooled<2, 2>({1, 5, 6, 8, 2, 2, 1});
  expect_pooled<2, 2>({1, 36, 4, 8, 2, 2, 0});
}

// ---- batch norm ----

namespace bn = batch_norm;

struct Matrix {
  int samples, each, width;  // rows a sample
  bool wide, relu, skip, weights;
  float mean = 3;

  int rows() const { return samples * each; }
};

// Every block of a kernel, in any order.
template <class Body>
void run_blocks(int across, int down, int threads, const Body& body) {
  card.cluster = 1, card.blocks = across, card.blocks_y = down;
  card.body = body;
  for (card.block_y = down - 1; card.block_y >= 0; --card.block_y)
    for (card.block = 0; card.block < across; ++card.block) card.run(threads);
  card.block_y = 0;
}
template <class T>
T& shared_as() {
  return *reinterpret_cast<T*>(card.shared());
}

class BatchNormed {
 public:
  explicit BatchNormed(const Matrix& m)
      : m_(m),
        count_(static_cast<size_t>(m.rows()) * static_cast<size_t>(m.width)),
        x_(noise(static_cast<int64_t>(count_), 2, 1, m.mean)),
        skip_(noise(static_cast<int64_t>(count_), 1, 2)),
        dy_(noise(static_cast<int64_t>(count_), 1, 3)),
        more_(noise(static_cast<int64_t>(count_), 1, 4)),
        y_(count_, bf16{0xffff}),
        d_(y_),
        dx_(y_),
        passed_(count_ / 8, 0xff) {
    for (int k = 0; k < m.width; ++k) w_.push_back(1 + 0.1f * static_cast<float>(k % 5));
    for (int b = 0; b < m.samples; ++b) weight_.push_back(b % 3 == 1 ? 0.0f : 0.25f);
    for (auto* table : {&pivot_, &scale_, &shift_, &mean_, &var_, &offset_, &slope_, &dw_, &dbias_,
                        &running_mean_, &running_var_})
      table->assign(w_.size(), 0.5f);
    counted_ = {m.weights ? weight_.data() : nullptr, m.samples, m.each};
    sums_ = bn::plan_sums(m.rows(), m.width, m.wide);
    pass_ = bn::plan_pass(m.rows(), m.width, m.wide);
    partials_.assign(static_cast<size_t>(sums_.chunks) * 2 * w_.size(), NAN);
  }
  template <bool kWide>
  void forward() {
    const bn::Moments<bf16> moments{x_.data(), counted_, sums_, pivot_.data(), partials_.data()};
    run_blocks(sums_.tiles, sums_.chunks, bn::kThreads,
               [&] { bn::add_moments<bf16, kWide>(moments, shared_as<bn::Shared>()); });
    const bn::Affine affine{
        w_.data(),    w_.data(),     pivot_.data(),
        kEps,         scale_.data(), shift_.data(),
        mean_.data(), var_.data(),   {0.1f, running_mean_.data(), running_var_.data()}};
    finish(affine);
    const bn::Application<bf16> application{x_.data(),     m_.skip ? skip_.data() : nullptr,
                                            y_.data(),     scale_.data(),
                                            shift_.data(), m_.relu,
                                            pass_};
    run_blocks(pass_.tiles, pass_.chunks, bn::kThreads,
               [&] { bn::apply<bf16, kWide>(application); });
  }
  template <bool kWide>
  void backward() {
    const bf16* y = m_.relu ? y_.data() : nullptr;
    const bool bits = kWide && m_.relu && !m_.skip;
    const bn::Gradients<bf16> gradients{dy_.data(),
                                        m_.skip ? more_.data() : nullptr,
                                        x_.data(),
                                        y,
                                        m_.skip ? d_.data() : nullptr,
                                        bits ? passed_.data() : nullptr,
                                        mean_.data(),
                                        sums_,
                                        partials_.data()};
    run_blocks(sums_.tiles, sums_.chunks, bn::kThreads,
               [&] { bn::add_gradients<bf16, kWide>(gradients, shared_as<bn::Shared>()); });
    finish(bn::Coefficients{w_.data(), var_.data(), kEps, scale_.data(), offset_.data(),
                            slope_.data(), dw_.data(), dbias_.data()});
    const bn::BackApplication<bf16> application{m_.skip ? d_.data() : dy_.data(),
                                                x_.data(),
                                                m_.skip || bits ? nullptr : y,
                                                bits ? passed_.data() : nullptr,
                                                dx_.data(),
                                                mean_.data(),
                                                scale_.data(),
                                                offset_.data(),
                                                slope_.data(),
                                                counted_,
                                                pass_};
    run_blocks(pass_.tiles, pass_.chunks, bn::kThreads,
               [&] { bn::apply_back<bf16, kWide>(application); });
  }
  void check() const {
    for (size_t k = 0; k < w_.size(); ++k) check_column(k);
  }

 private:
  static constexpr float kEps = 1e-3f;

  template <class Sink>
  void finish(const Sink& sink) {
    run_blocks((m_.width + kWarp - 1) / kWarp, 1, bn::kFinishThreads, [&] {
      bn::finish(partials_.data(), sums_, counted_, sink, shared_as<bn::FinishShared>());
    });
  }
  bool counts(size_t row) const {
    return !m_.weights || weight_[row / static_cast<size_t>(m_.each)] > 0;
  }
  void check_column(size_t k) const {
    const auto rows = static_cast<size_t>(m_.rows());
    const auto at = [&](size_t r) { return r * w_.size() + k; };
    double n = 0, mean = 0, var = 0, sum = 0, product = 0;
    for (size_t r = 0; r < rows; ++r)
      if (counts(r)) ++n, mean += value(x_[at(r)]);
    mean /= n;
    for (size_t r = 0; r < rows; ++r)
      if (counts(r)) var += std::pow(value(x_[at(r)]) - mean, 2) / n;
    ASSERT_NEAR(static_cast<double>(mean_[k]), mean, 1e-5 * (1 + std::abs(mean))) << k;
    ASSERT_NEAR(static_cast<double>(var_[k]), var, 2e-5 * var + 1e-9) << k;
    ASSERT_NEAR(static_cast<double>(running_mean_[k]), 0.45 + 0.1 * mean,
                1e-5 * (1 + std::abs(mean)));
    ASSERT_NEAR(static_cast<double>(running_var_[k]), 0.45 + 0.1 * var * n / std::max(n - 1, 1.0),
                1e-5 * (1 + var));
    const double w = static_cast<double>(w_[k]), scale = w / std::sqrt(var + double{kEps});
    std::vector<double> d;
    for (size_t r = 0; r < rows; ++r) {
      double y = (value(x_[at(r)]) - mean) * scale + w;
      if (m_.skip) y += value(skip_[at(r)]);
      if (m_.relu) y = std::max(y, 0.0);
      ASSERT_NEAR(value(y_[at(r)]), y, 0.02 * (1 + std::abs(y))) << r << " " << k;
      d.push_back(value(dy_[at(r)]));
      if (m_.skip)
        d.back() = from_bf16(to_bf16(static_cast<float>(d.back() + value(more_[at(r)]))));
      if (m_.relu && !(value(y_[at(r)]) > 0)) d.back() = 0;
      if (m_.skip) {
        ASSERT_EQ(value(d_[at(r)]), d.back()) << r << " " << k;
      }
      sum += d.back(), product += d.back() * (value(x_[at(r)]) - mean);
    }
    const double rstd = 1 / std::sqrt(var + double{kEps});
    ASSERT_NEAR(static_cast<double>(dbias_[k]), 0.5 + sum, 1e-4 * (1 + std::abs(sum)));
    ASSERT_NEAR(static_cast<double>(dw_[k]), 0.5 + product * rstd, 1e-3 * (1 + std::abs(product)));
    for (size_t r = 0; r < rows; ++r) {
      double dx = d[r] * scale;
      if (counts(r))
        dx -= scale * sum / n + (value(x_[at(r)]) - mean) * scale * rstd * rstd * product / n;
      ASSERT_NEAR(value(dx_[at(r)]), dx, 0.01 * (1 + std::abs(dx))) << r << " " << k;
    }
  }

  Matrix m_;
  size_t count_;
  std::vector<bf16> x_, skip_, dy_, more_, y_, d_, dx_;
  std::vector<float> w_, weight_, pivot_, scale_, shift_, mean_, var_, offset_, slope_, dw_, dbias_,
      running_mean_, running_var_, partials_;
  std::vector<uint8_t> passed_;
  bn::Counted counted_;
  bn::Plan sums_, pass_;
};

template <bool kWide>
void expect_normed(Matrix m) {
  m.wide = kWide;
  SCOPED_TRACE(m.width);
  BatchNormed norm(m);
  ASSERT_NO_THROW((norm.forward<kWide>(), norm.backward<kWide>()));
  norm.check();
}

// Columns of every number of lanes, rows that end within a chunk, samples that do not count.
TEST(EmulatedBatchNorm, EightChannelsAThread) {
  expect_normed<true>({4, 100, 64, true, true, false, true});
  expect_normed<true>({5, 77, 24, true, true, true, true});
  expect_normed<true>({3, 40, 128, true, false, false, false, 500});
  expect_normed<true>({2, 9, 520, true, true, true, false});
  expect_normed<true>({1, 1, 8, true, false, false, false});
}

TEST(EmulatedBatchNorm, OneChannelAThread) {
  expect_normed<false>({4, 50, 3, false, true, false, true});
  expect_normed<false>({5, 17, 37, false, true, true, false});
  expect_normed<false>({9, 1, 1, false, false, false, true});
}

}  // namespace
}  // namespace vitrum::cuda
