// How op cases are made: one make() for each op, the attributes given being ignored.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "tests/support/op_cases.h"
#include "vitrum/core/e4m3.h"
#include "vitrum/core/philox.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {

inline constexpr DType kF32 = DType::kF32, kI32 = DType::kI32;

// Collects the cases of one op, and draws their data.
class Maker {
 public:
  Maker(DType compute, size_t op) : compute(compute), draw_(2024, 0, op) {}

  HostTensor normal(Shape shape, DType dtype, double deviation = 1, double mean = 0) {
    HostTensor t{.shape = shape, .dtype = dtype};
    for (int64_t i = 0; i < shape.numel(); ++i)
      t.values.push_back(exact(mean + deviation * draw_.normal(), dtype));
    return t;
  }
  HostTensor below(Shape shape, int64_t n, DType dtype) {
    HostTensor t{.shape = shape, .dtype = dtype};
    for (int64_t i = 0; i < shape.numel(); ++i)
      t.values.push_back(draw_.below(static_cast<uint32_t>(n)));
    return t;
  }
  HostTensor rng() {  // a high step as well: all four words count
    HostTensor t = below({4}, 1 << 30, kI32);
    t.values[3] = 5;
    return t;
  }
  HostTensor rng_if(float drop) { return drop > 0 ? rng() : none(); }
  static HostTensor none() { return {.present = false}; }
  static HostTensor blank(Shape shape, DType dtype) { return {.shape = shape, .dtype = dtype}; }
  static HostTensor needed(HostTensor t) { return t.optional = false, t; }
  double uniform() { return draw_.uniform(); }

  OpCase& add(Op op, const std::string& label, std::vector<HostTensor> in,
              std::vector<HostTensor> out) {
    OpCase c{
        .name = std::string(name_of(op)), .op = op, .in = std::move(in), .out = std::move(out)};
    if (!label.empty()) c.name += " " + label;
    for (const HostTensor& t : c.in)
      if (t.present) c.name += " " + t.shape.str();
    c.name += " " + std::string(vitrum::name_of(compute));
    return cases.emplace_back(std::move(c));
  }
  // Results of a forward op, as a backward op would find them.
  static std::vector<HostTensor> forward(Op op, std::vector<HostTensor> in,
                                         std::vector<HostTensor> out) {
    const auto backend = make_reference_backend();
    return run_case(*backend, {"forward", std::move(op), std::move(in), std::move(out)}).out;
  }

  const DType compute;
  std::vector<OpCase> cases;

 private:
  static double exact(double x, DType dtype) {
    const auto single = static_cast<float>(x);
    if (dtype == DType::kE4M3) return from_e4m3(to_e4m3(single));
    return dtype == DType::kBF16 ? from_bf16(to_bf16(single)) : single;
  }

  PhiloxStream draw_;
};

void make(Maker& m, const Normalize&);
void make(Maker& m, const Mix&);
void make(Maker& m, const TakeImages&);
void make(Maker& m, const Patchify&);
void make(Maker& m, const Linear&);
void make(Maker& m, const Activation&);
void make(Maker& m, const LayerNorm&);
void make(Maker& m, const AddLayerNorm&);
void make(Maker& m, const Attention&);
void make(Maker& m, const RelativeBias&);
void make(Maker& m, const Rotate&);
void make(Maker& m, const Gate&);
void make(Maker& m, const GatherTokens&);
void make(Maker& m, const AttentionProbs&);
void make(Maker& m, const Add&);
void make(Maker& m, const ChannelScale&);
void make(Maker& m, const Dropout&);
void make(Maker& m, const DropPath&);
void make(Maker& m, const KeepTokens&);
void make(Maker& m, const PlaceTokens&);
void make(Maker& m, const Tokens&);
void make(Maker& m, const Pool&);
void make(Maker& m, const AttendPool&);
void make(Maker& m, const AttendPoolBwd&);
void make(Maker& m, const Lookup&);
void make(Maker& m, const CrossEntropy&);
void make(Maker& m, const Argmax&);
void make(Maker& m, const LogSoftmax&);
void make(Maker& m, const TrainMetrics&);
void make(Maker& m, const LinearBwd&);
void make(Maker& m, const ActivationBwd&);
void make(Maker& m, const LayerNormBwd&);
void make(Maker& m, const AttentionBwd&);
void make(Maker& m, const RelativeBiasBwd&);
void make(Maker& m, const GateBwd&);
void make(Maker& m, const AttentionProbsGrad&);
void make(Maker& m, const ChannelScaleBwd&);
void make(Maker& m, const TokensBwd&);
void make(Maker& m, const PoolBwd&);
void make(Maker& m, const CrossEntropyBwd&);
void make(Maker& m, const ClearRange&);
void make(Maker& m, const ClipScale&);
void make(Maker& m, const BlockSquares&);
void make(Maker& m, const Fold&);
void make(Maker& m, const OptimizerStep&);
void make(Maker& m, const Conv2d&);
void make(Maker& m, const MaxPool&);
void make(Maker& m, const DepthwiseConv&);
void make(Maker& m, const ResponseNorm&);
void make(Maker& m, const UnitHeads&);
void make(Maker& m, const QLinear&);
void make(Maker& m, const QAttention&);
void make(Maker& m, const ToE4M3&);
void make(Maker& m, const BatchNorm&);
void make(Maker& m, const FrozenBatchNorm&);
void make(Maker& m, const RunningStats&);
void make(Maker& m, const Conv2dBwd&);
void make(Maker& m, const MaxPoolBwd&);
void make(Maker& m, const DepthwiseConvBwd&);
void make(Maker& m, const ResponseNormBwd&);
void make(Maker& m, const UnitHeadsBwd&);
void make(Maker& m, const BatchNormBwd&);
void make(Maker& m, const Orthogonalize&);
void make(Maker& m, const Perturb&);
void make(Maker& m, const Copy&);

}  // namespace vitrum::test
