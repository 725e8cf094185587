#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {
namespace {

struct ConvCase {
  Shape x;
  int64_t out, kernel, stride, padding;

  int64_t along(int64_t size) const { return (size + 2 * padding - kernel) / stride + 1; }
  Shape y() const { return {x[0], along(x[1]), along(x[2]), out}; }
  Shape w() const { return {out, x[3], kernel, kernel}; }
  std::string label() const {
    return std::to_string(kernel) + "x" + std::to_string(kernel) + "/" + std::to_string(stride) +
           "+" + std::to_string(padding);
  }
};
const std::vector<ConvCase> kConvCases = {
    {{1, 1, 1, 1}, 1, 1, 1, 0},    {{2, 5, 7, 3}, 5, 3, 1, 1},   {{2, 9, 8, 3}, 16, 7, 2, 3},
    {{1, 6, 6, 17}, 65, 3, 2, 1},  {{3, 4, 5, 33}, 70, 1, 1, 0}, {{2, 7, 7, 20}, 24, 1, 2, 0},
    {{2, 8, 8, 64}, 64, 3, 1, 1},  {{1, 7, 9, 8}, 9, 3, 3, 0},   {{1, 3, 3, 64}, 300, 3, 2, 1},
    {{5, 14, 14, 8}, 6, 3, 1, 1},  {{1, 2, 5, 4}, 3, 5, 1, 2},   {{2, 1, 1, 40}, 16, 3, 1, 1},
    {{1, 12, 12, 6}, 12, 2, 4, 0}, {{1, 9, 9, 72}, 80, 3, 2, 1},
};

HostTensor weight_of(Maker& m, const ConvCase& c) {
  return m.normal(c.w(), m.compute,
                  1 / std::sqrt(static_cast<double>(c.x[3] * c.kernel * c.kernel)));
}

// Variances are positive, and one is nearly nothing.
HostTensor variances(Maker& m, int64_t channels) {
  HostTensor t = m.normal({channels}, kF32);
  for (double& v : t.values) v = static_cast<float>(v * v + 0.1);
  t.values[0] = 0;
  return t;
}

const std::vector<Shape> kBatchShapes = {
    {9, 1}, {7, 3}, {3, 5, 4, 17}, {2, 9, 9, 64}, {5, 6, 7, 80}, {1, 16, 11, 3}, {4, 2, 2, 300}};

// Every third sample does not count; the first always does.
HostTensor sample_weights(int64_t samples) {
  HostTensor t{.shape = {samples}, .dtype = kF32};
  for (int64_t b = 0; b < samples; ++b) t.values.push_back(b % 3 == 1 ? 0 : 0.25);
  return t;
}

struct NormVariant {
  const char* label;
  bool relu, skip, weights;
};
constexpr NormVariant kNormVariants[] = {{"", false, false, false},
                                         {"relu", true, false, true},
                                         {"skip relu", true, true, false},
                                         {"skip", false, true, true}};
Act act_of(const NormVariant& v) { return v.relu ? Act::kRelu : Act::kNone; }

}  // namespace

void make(Maker& m, const Conv2d&) {
  for (const ConvCase& c : kConvCases) {
    const HostTensor x = m.normal(c.x, m.compute), w = weight_of(m, c),
                     y = m.blank(c.y(), m.compute);
    m.add(Conv2d{.stride = c.stride, .padding = c.padding}, c.label(), {x, w}, {y});
    const HostTensor gamma = m.normal({c.out}, kF32, 1, 1), beta = m.normal({c.out}, kF32),
                     mean = m.normal({c.out}, kF32);
    for (const NormVariant& v : kNormVariants)
      m.add(Conv2d{c.stride, c.padding, 1e-1f, act_of(v)}, c.label() + " norm " + v.label,
            {x, w, gamma, beta, mean, variances(m, c.out),
             v.skip ? m.normal(c.y(), m.compute) : m.none()},
            {y});
  }
}

void make(Maker& m, const Conv2dBwd&) {
  for (const ConvCase& c : kConvCases)
    m.add(Conv2dBwd{.stride = c.stride, .padding = c.padding}, c.label(),
          {m.normal(c.y(), m.compute), m.normal(c.x, m.compute), weight_of(m, c)},
          {m.blank(c.x, m.compute), m.normal(c.w(), kF32)});
}

void make(Maker& m, const MaxPool&) {
  for (const ConvCase& c : kConvCases)
    if (c.padding <= c.kernel / 2)
      m.add(MaxPool{c.kernel, c.stride, c.padding}, c.label(), {m.normal(c.x, m.compute)},
            {m.blank(c.y().with_last(c.x[3]), m.compute)});
}

void make(Maker& m, const MaxPoolBwd&) {
  for (const ConvCase& c : kConvCases) {
    if (c.padding > c.kernel / 2) continue;
    HostTensor x = m.normal(c.x, m.compute);
    for (double& v : x.values) v = v > 0 ? v : 0;  // behind a ReLU many are equal
    m.add(MaxPoolBwd{.kernel = c.kernel, .stride = c.stride, .padding = c.padding}, c.label(),
          {m.normal(c.y().with_last(c.x[3]), m.compute), x}, {m.blank(c.x, m.compute)});
  }
}

void make(Maker& m, const BatchNorm&) {
  for (const Shape& s : kBatchShapes)
    for (const NormVariant& v : kNormVariants) {
      const Shape channels{s[-1]};
      m.add(
          BatchNorm{1e-3f, act_of(v)}, v.label,
          {m.normal(s, m.compute, 2, 3), m.normal(channels, kF32, 1, 1), m.normal(channels, kF32),
           v.weights ? sample_weights(s[0]) : m.none(), v.skip ? m.normal(s, m.compute) : m.none()},
          {m.blank(s, m.compute), m.blank(channels, kF32), m.blank(channels, kF32)});
    }
  // A mean far from zero: a one-pass variance would cancel.
  m.add(BatchNorm{1e-5f}, "far",
        {m.normal({4, 300, 5}, kF32, 1, 1000), m.normal({5}, kF32), m.normal({5}, kF32), m.none(),
         m.none()},
        {m.none(), m.blank({5}, kF32), m.blank({5}, kF32)});
}

void make(Maker& m, const FrozenBatchNorm&) {
  for (const Shape& s : kBatchShapes)
    for (const NormVariant& v : kNormVariants) {
      const Shape channels{s[-1]};
      m.add(FrozenBatchNorm{.eps = 1e-1f, .act = act_of(v)}, v.label,
            {m.normal(s, m.compute, 2, 3), m.normal(channels, kF32, 1, 1), m.normal(channels, kF32),
             m.normal(channels, kF32), variances(m, s[-1]),
             v.skip ? m.normal(s, m.compute) : m.none()},
            {m.blank(s, m.compute)});
    }
}

void make(Maker& m, const RunningStats&) {
  for (const int64_t channels : {1, 17, 64})
    for (const bool weights : {false, true})
      m.add(RunningStats{.momentum = 0.1f, .samples = 5, .positions = 7}, "",
            {m.normal({channels}, kF32), variances(m, channels),
             weights ? sample_weights(5) : m.none()},
            {m.normal({channels}, kF32), m.normal({channels}, kF32)});
  m.add(RunningStats{.momentum = 0.3f, .samples = 1, .positions = 1}, "alone",
        {m.normal({3}, kF32), variances(m, 3)}, {m.normal({3}, kF32), m.normal({3}, kF32)});
}

void make(Maker& m, const BatchNormBwd&) {
  for (const Shape& s : kBatchShapes)
    for (const NormVariant& v : kNormVariants) {
      if (v.skip && !v.relu) continue;  // the sum hands its gradient on by itself
      const Shape channels{s[-1]};
      const HostTensor x = m.normal(s, m.compute, 2, 3), w = m.normal(channels, kF32, 1, 1),
                       weight = v.weights ? sample_weights(s[0]) : m.none();
      const auto y =
          m.forward(BatchNorm{1e-3f, act_of(v)}, {x, w, m.normal(channels, kF32), weight, m.none()},
                    {m.blank(s, m.compute), m.blank(channels, kF32), m.blank(channels, kF32)});
      m.add(BatchNormBwd{.eps = 1e-3f, .act = act_of(v)}, v.label,
            {m.normal(s, m.compute), x, w, y[1], y[2], v.relu ? y[0] : m.none(), weight},
            {m.blank(s, m.compute), m.normal(channels, kF32), m.normal(channels, kF32),
             v.skip ? m.blank(s, m.compute) : m.none()});
    }
}

}  // namespace vitrum::test
