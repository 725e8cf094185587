#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {

void make(Maker& m, const ClipScale&) {
  for (int64_t n : {1, 7, 1000, 70001})
    for (float max_norm : {0.f, 1.f, 1e6f})
      m.add(ClipScale{.max_norm = max_norm}, std::to_string(max_norm), {m.normal({n}, kF32)},
            {m.blank({2}, kF32)});
  for (int64_t n : {1, 300}) {
    HostTensor sums = m.normal({n}, DType::kF64);
    for (double& v : sums.values) v *= v;
    m.add(ClipScale{.max_norm = 1, .of_sums = true}, "of sums", {sums}, {m.blank({2}, kF32)});
  }
}

void make(Maker& m, const Fold&) {
  for (int64_t n : {1, 1003, 70001})
    for (size_t lefts : {0, 1, 3}) {
      std::vector<HostTensor> in;
      for (size_t i = 0; i < lefts; ++i) in.push_back(m.normal({n}, kF32));
      m.add(Fold{}, std::to_string(lefts), in,
            {m.needed(m.normal({n}, kF32)), m.needed(m.blank({n}, kF32))});
    }
}

namespace {

// Segments start at multiples of 16, with padding between; between the second and the last is a
// frozen parameter's place. The last spans several ranges of every backend.
const std::vector<Segment> kSegments = {
    {0, 1, 1, 0.1f}, {16, 33, 0.5f, 0}, {128, 1379, 1, 0.05f}, {1520, 20000, 2, 0.01f}};
constexpr int64_t kSize = 21520;

// Gradients of what is not trained stay zero.
HostTensor gradients(Maker& m) {
  HostTensor g = m.normal({kSize}, kF32);
  std::vector<double> used(g.values.size(), 0);
  for (const Segment& s : kSegments)
    for (int64_t i = s.offset; i < s.offset + s.size; ++i) used[static_cast<size_t>(i)] = 1;
  for (size_t i = 0; i < used.size(); ++i) g.values[i] *= used[i];
  return g;
}

HostTensor of(std::vector<double> values) {
  for (double& v : values) v = static_cast<float>(v);
  return {.shape = {static_cast<int64_t>(values.size())}, .dtype = kF32, .values = values};
}

// Only where bf16's tolerance holds: a sum near the middle of two numbers may go either way.
HostTensor narrow_copy(Maker& m) {
  return m.compute == DType::kBF16 ? m.normal({kSize}, DType::kBF16) : m.none();
}

void add_step(Maker& m, OptimizerStep op, int step, bool momentum, bool clipped) {
  using enum OptimizerKind;
  const bool second = op.kind == kAdam || op.kind == kAdamW || op.kind == kLamb;
  HostTensor squares = m.normal({kSize}, kF32);
  for (double& v : squares.values) v = static_cast<float>(v * v);
  op.segments = kSegments;
  const HostTensor hyper = of({0.01, 1 - std::pow(0.9, step), 1 - std::pow(0.999, step), 0.99});
  m.add(op,
        std::to_string(static_cast<int>(op.kind)) + (op.nesterov ? " nesterov" : "") + " step " +
            std::to_string(step),
        {hyper, clipped ? of({4, 0.25}) : m.none()},
        {m.needed(gradients(m)), m.needed(m.normal({kSize}, kF32)),
         momentum ? m.needed(m.normal({kSize}, kF32)) : m.none(),
         second ? m.needed(squares) : m.none(), m.normal({kSize}, kF32), narrow_copy(m)});
}

}  // namespace

void make(Maker& m, const BlockSquares&) {
  m.add(BlockSquares{.segments = kSegments}, "", {gradients(m)}, {m.blank({5}, DType::kF64)});
}

void make(Maker& m, const OptimizerStep&) {
  using enum OptimizerKind;
  for (OptimizerKind kind : {kSgd, kAdam, kAdamW, kLion, kLamb})
    for (int step : {1, 100}) add_step(m, {.kind = kind}, step, /*momentum=*/true, true);
  add_step(m, {.kind = kSgd}, 1, /*momentum=*/false, true);
  add_step(m, {.kind = kSgd, .nesterov = true}, 1, true, true);
  add_step(m, {.kind = kMuon}, 1, /*momentum=*/false, /*clipped=*/false);
}

void make(Maker& m, const Orthogonalize&) {
  // Tall, wide, square, a vector; two of one shape, and none a multiple of a tile.
  const std::vector<MatrixSegment> matrices = {{0, 37, 70, 1},        {2592, 70, 37, 2},
                                               {5184, 150, 37, 0.5f}, {10736, 37, 70, 3},
                                               {13328, 1, 9, 1},      {13344, 200, 130, 0.2f}};
  constexpr int64_t kElements = 39344;
  for (bool nesterov : {true, false}) {
    HostTensor g = m.normal({kElements}, kF32), momentum = m.normal({kElements}, kF32, 0.3);
    m.add(
         Orthogonalize{
             .nesterov = nesterov, .bf16 = m.compute == DType::kBF16, .matrices = matrices},
         nesterov ? "nesterov" : "", {of({4, 0.25})}, {m.needed(g), m.needed(momentum)})
        .looser = m.compute == DType::kBF16 ? 10 : 2;
  }
}

void make(Maker& m, const Perturb&) {
  m.add(Perturb{.rho = 0.05f, .segments = kSegments}, "", {of({4, 0.25})},
        {m.needed(gradients(m)), m.needed(m.normal({kSize}, kF32)), narrow_copy(m)});
}

void make(Maker& m, const Copy&) {
  for (int64_t n : {1, 1000, 70001})
    for (DType dtype : {kF32, DType::kF64, DType::kBF16})
      m.add(Copy{}, "", {m.normal({n}, dtype)}, {m.blank({n}, dtype)});
  if (m.compute == DType::kBF16)
    m.add(Copy{}, "narrow", {m.normal({1003}, kF32)}, {m.blank({1003}, DType::kBF16)});
}

}  // namespace vitrum::test
