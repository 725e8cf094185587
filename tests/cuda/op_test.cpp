// Every op of the CUDA backend against the reference, and what must not depend on how a program is
// run. Built everywhere; each test skips itself where there is no card.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/case_maker.h"
#include "tests/support/cuda.h"
#include "tests/support/op_cases.h"
#include "vitrum/core/error.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

using OpParam = std::tuple<size_t, DType>;

std::string name_of_param(const ::testing::TestParamInfo<OpParam>& info) {
  const auto& [op, dtype] = info.param;
  return op_name(op) + "_" + std::string(name_of(dtype));
}

class CudaOp : public ::testing::TestWithParam<OpParam> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_CUDA();
    const std::string op = op_name(std::get<size_t>(GetParam()));
    backend_ = cuda(/*exact=*/true);
    if (op == "QAttention") GTEST_SKIP() << "attention of bytes is for CPUs";
    if (op == "QLinear" && (dtype() != DType::kBF16 || !backend_->multiplies_e4m3()))
      GTEST_SKIP() << "layers of e4m3 leave bf16, on cards that multiply it";
  }
  static DType dtype() { return std::get<DType>(GetParam()); }
  static std::vector<OpCase> cases() {
    std::vector<OpCase> all = op_cases(std::get<size_t>(GetParam()), dtype());
    std::erase_if(all, [](const OpCase& c) {  // those of int8 are for CPUs
      const auto* layer = std::get_if<QLinear>(&c.op);
      return layer && layer->scale == 0;
    });
    return all;
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(CudaOp, AgreesWithTheReference) {
  const auto reference = make_reference_backend();
  const double tolerance = dtype() == DType::kF32 ? 5e-5 : 1.6e-2;
  for (const OpCase& c : cases()) {
    const RunResult result = run_case(*backend_, c);
    EXPECT_EQ(result.fault, "");
    EXPECT_EQ(difference(result.out, run_case(*reference, c).out, c.looser * tolerance), "")
        << c.name;
  }
}

TEST_P(CudaOp, SameBitsEveryTime) {
  for (const OpCase& c : cases()) {
    const RunResult once = run_case(*backend_, c);
    EXPECT_EQ(bit_difference(run_case(*backend_, c).out, once.out), "") << c.name;
  }
}

TEST_P(CudaOp, AbsentOutputsChangeNothing) {
  for (const OpCase& c : cases()) ASSERT_EQ(optional_output_fault(*backend_, c), "");
}

INSTANTIATE_TEST_SUITE_P(Grid, CudaOp,
                         ::testing::Combine(::testing::Range(size_t{0}, kOps),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         name_of_param);

struct AttentionSize {
  int64_t images, tokens, heads, size;
  float drop = 0;
};
class CudaAttention : public ::testing::TestWithParam<AttentionSize> {};

TEST_P(CudaAttention, AgreesWithTheReference) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true), reference = make_reference_backend();
  const AttentionSize& s = GetParam();
  Maker m(DType::kBF16, kOps);
  const int64_t width = s.heads * s.size;
  const Shape y{s.images, s.tokens, width}, rows{s.images, s.heads, s.tokens};
  const HostTensor qkv = m.normal({s.images, s.tokens, 3 * width}, m.compute),
                   rng = m.rng_if(s.drop);
  const OpCase forward = m.add(Attention{s.heads, s.drop, 11}, "", {qkv, rng},
                               {m.blank(y, m.compute), m.blank(rows, kF32)});
  const RunResult expected = run_case(*reference, forward), got = run_case(*backend, forward);
  EXPECT_EQ(got.fault, "");
  EXPECT_EQ(difference(got.out, expected.out, 1.6e-2), "") << forward.name;
  const OpCase backward =
      m.add(AttentionBwd{.heads = s.heads, .drop = s.drop, .site = 11}, "",
            {m.normal(y, m.compute), qkv, expected.out[0], expected.out[1], rng},
            {m.blank(qkv.shape, m.compute)});
  const RunResult back = run_case(*backend, backward);
  EXPECT_EQ(back.fault, "");
  // bf16 gradients of the scores cancel in a row of dq: rounding alone makes up to 2.1e-2.
  EXPECT_EQ(difference(back.out, run_case(*reference, backward).out, 3e-2), "") << backward.name;
}

// Heads of every kernel, sequences that do not fit into shared memory, more heads than processors.
constexpr AttentionSize kAttentionSizes[] = {
    {2, 40, 2, 24},        {2, 50, 3, 48},        {2, 33, 2, 96},         {1, 70, 2, 128},
    {1, 20, 2, 192},       {1, 20, 1, 256},       {300, 33, 1, 32, 0.1f}, {90, 50, 3, 64},
    {1, 577, 2, 64},       {1, 577, 1, 64, 0.2f}, {1, 1100, 1, 64},       {280, 17, 1, 8},
    {300, 65, 4, 64},      {150, 64, 4, 64},      {150, 61, 4, 64},       {1, 65, 1, 64},
    {20, 65, 2, 64, 0.1f}, {3, 17, 5, 64},        {700, 16, 3, 32},       {5, 80, 1, 40},
    {70, 81, 2, 64},       {45, 97, 3, 64},       {140, 128, 1, 64},      {34, 144, 4, 64},
    {45, 145, 3, 64},      {12, 197, 12, 64},     {5, 197, 3, 64},        {27, 200, 5, 64},
    {34, 201, 4, 64},      {23, 208, 6, 64},      {34, 192, 4, 64},       {45, 193, 3, 64},
    {45, 209, 3, 64},      {45, 257, 3, 64},      {44, 401, 3, 64},       {67, 577, 2, 64},
    {67, 442, 2, 64},      {66, 601, 2, 64},      {1, 197, 12, 64},       {3, 113, 2, 64},
    {2, 224, 3, 64},       {1, 225, 2, 64},       {17, 256, 16, 72},      {34, 257, 8, 80},
    {90, 160, 3, 32},      {12, 197, 16, 32},     {45, 81, 3, 32},        {45, 193, 3, 32},
    {34, 208, 4, 32},      {9, 197, 16, 32},      {12, 409, 12, 72},      {34, 137, 4, 72},
    {67, 577, 2, 80}};
INSTANTIATE_TEST_SUITE_P(Sizes, CudaAttention, ::testing::ValuesIn(kAttentionSizes),
                         [](const auto& given) {
                           const AttentionSize& s = given.param;
                           return fmt::format("{}x{}x{}x{}{}", s.images, s.tokens, s.heads, s.size,
                                              s.drop > 0 ? "_drop" : "");
                         });

// With a bias, and where masks > 0 a mask; its gradient, alone and beside that of qkv. Both are
// small: the kernels take dy . y from y as it is stored, in bf16, which a weight near 1 would show
// in full where most elements of the gradient are nearly zero.
struct BiasedSize {
  int64_t images, tokens, heads, size, masks;
  float drop = 0;
};
class CudaBiasedAttention : public ::testing::TestWithParam<BiasedSize> {};

TEST_P(CudaBiasedAttention, AgreesWithTheReference) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true), reference = make_reference_backend();
  const BiasedSize& s = GetParam();
  Maker m(DType::kBF16, kOps);
  const Shape y{s.images, s.tokens, s.heads * s.size}, rows{s.images, s.heads, s.tokens};
  const HostTensor qkv = m.normal(y.with_last(3 * y[2]), m.compute), rng = m.rng_if(s.drop),
                   bias = m.normal({s.heads, s.tokens, s.tokens}, kF32, 0.5),
                   mask =
                       s.masks > 0 ? m.normal({s.masks, s.tokens, s.tokens}, kF32, 0.5) : m.none();
  const OpCase forward = m.add(Attention{s.heads, s.drop, 11}, "", {qkv, rng, bias, mask},
                               {m.blank(y, m.compute), m.blank(rows, kF32)});
  const RunResult expected = run_case(*reference, forward), got = run_case(*backend, forward);
  EXPECT_EQ(got.fault, "");
  EXPECT_EQ(difference(got.out, expected.out, 1.6e-2), "") << forward.name;
  const HostTensor dy = m.normal(y, m.compute);
  for (const bool alone : {false, true}) {
    const OpCase backward =
        m.add(AttentionBwd{.heads = s.heads, .drop = s.drop, .site = 11}, "",
              {dy, qkv, expected.out[0], expected.out[1], rng, bias, mask},
              {alone ? m.none() : m.blank(qkv.shape, m.compute), m.blank(bias.shape, kF32)});
    const RunResult back = run_case(*backend, backward);
    EXPECT_EQ(back.fault, "");
    // The kernels sum in f32 over probabilities in bf16: one of five million elements differs
    // by 3.1e-2.
    EXPECT_EQ(difference(back.out, run_case(*reference, backward).out, 4e-2), "") << backward.name;
    EXPECT_EQ(bit_difference(run_case(*backend, backward).out, back.out), "") << backward.name;
  }
}

// Windows of a Swin at 384 pixels, heads and tokens that fill no tile, one part of the images and
// many, dropout.
constexpr BiasedSize kBiasedSizes[] = {
    {90, 144, 4, 32, 4}, {1, 144, 2, 32, 0},       {7, 145, 2, 40, 3},  {3, 197, 3, 64, 1},
    {2, 257, 2, 96, 0},  {20, 81, 2, 24, 2, 0.1f}, {1, 577, 1, 128, 1}, {9, 49, 2, 32, 3, 0.2f},
    {45, 197, 3, 64, 0}, {34, 130, 4, 64, 0},      {70, 209, 2, 64, 0}, {134, 150, 2, 72, 2},
    {67, 197, 4, 64, 3}, {68, 256, 4, 32, 4},      {34, 200, 4, 72, 0}, {45, 257, 3, 80, 0}};
INSTANTIATE_TEST_SUITE_P(Sizes, CudaBiasedAttention, ::testing::ValuesIn(kBiasedSizes),
                         [](const auto& given) {
                           const BiasedSize& s = given.param;
                           return fmt::format("{}x{}x{}x{}{}{}", s.images, s.tokens, s.heads,
                                              s.size, s.masks > 0 ? "_mask" : "",
                                              s.drop > 0 ? "_drop" : "");
                         });

// So many rows that the gradient behind the activation is worked off in two parts, not alike.
TEST(Cuda, LinearBackwardInParts) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true), reference = make_reference_backend();
  Maker m(DType::kBF16, kOps);
  const int64_t rows = 90'001, n = 1024, k = 8;
  const OpCase c =
      m.add(LinearBwd{.act = Act::kGelu}, "",
            {m.normal({rows, n}, m.compute), m.normal({rows, k}, m.compute),
             m.normal({n, k}, m.compute), m.normal({rows, n}, m.compute), m.none()},
            {m.blank({rows, k}, m.compute), m.normal({n, k}, kF32), m.normal({n}, kF32)});
  const RunResult got = run_case(*backend, c);
  EXPECT_EQ(got.fault, "");
  EXPECT_EQ(difference(got.out, run_case(*reference, c).out, 1.6e-2), "");
}

// So many rows that product, bias and GELU are one kernel where the card has it: what it saves is
// the product, what it returns has the bits of GELU of that. The last rows fill no tile, the depth
// no stage.
TEST(Cuda, LargeLinearWithGelu) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true);
  Maker m(DType::kBF16, kOps);
  struct Size {
    int64_t rows, columns, depth;
  };
  for (const auto& [rows, n, k] :
       {Size{11'201, 1536, 392}, {8'265, 1024, 256}, {9'001, 384, 96}, {8'200, 768, 192}}) {
    const HostTensor x = m.normal({rows, k}, m.compute), w = m.normal({n, k}, m.compute, 0.05);
    const HostTensor y = m.blank({rows, n}, m.compute);
    for (const HostTensor& bias : {m.normal({n}, m.compute), m.none()}) {
      const auto with = [&](Act act, const HostTensor& saved) {
        return m.add(Linear{.act = act}, "", {x, w, bias, m.none()}, {y, saved});
      };
      const RunResult got = run_case(*backend, with(Act::kGelu, y));
      EXPECT_EQ(got.fault, "");
      const RunResult plain = run_case(*backend, with(Act::kNone, m.none()));
      EXPECT_EQ(difference({got.out[1]}, {plain.out[0]}, 1.6e-2), "");
      const OpCase act = m.add(Activation{.act = Act::kGelu}, "", {got.out[1]}, {y});
      EXPECT_EQ(bit_difference({got.out[0]}, run_case(*backend, act).out), "");
      const RunResult alone = run_case(*backend, with(Act::kGelu, m.none()));
      EXPECT_EQ(bit_difference({alone.out[0]}, {got.out[0]}), "");
    }
  }
}

// So many rows that the product is our own where the card has it; in f32 it is cuBLASLt's.
TEST(Cuda, OwnProductsOfLinearLayers) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true);
  Maker m(DType::kF32, kOps);
  struct Size {
    int64_t rows, columns, depth;
  };
  for (const auto& [rows, n, k] : {Size{8'265, 768, 256}, {9'001, 256, 72}, {9'001, 288, 96}}) {
    const HostTensor x = m.normal({rows, k}, DType::kBF16), bias = m.normal({n}, DType::kBF16),
                     w = m.normal({n, k}, DType::kBF16, 0.05);
    const auto result = [&](DType dtype) {
      const auto as = [&](HostTensor t) { return t.dtype = dtype, t; };
      const RunResult got =
          run_case(*backend, m.add(Linear{}, "", {as(x), as(w), as(bias), m.none()},
                                   {m.blank({rows, n}, dtype), m.none()}));
      EXPECT_EQ(got.fault, "");
      return got.out[0];
    };
    EXPECT_EQ(difference({result(DType::kBF16)}, {result(DType::kF32)}, 8e-3), "") << k;
  }
}

TEST(Cuda, FusedEqualsPlain) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true);
  EXPECT_EQ(fusion_fault(*backend, DType::kF32), "");
  EXPECT_EQ(fusion_fault(*backend, DType::kBF16), "");
}

// By the card's own exponential; cuda_gelu_test.cpp has the curves.
TEST(Cuda, GeluOfEveryBf16Number) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true);
  Maker m(DType::kBF16, kOps);
  HostTensor x = m.blank({65'536}, m.compute);
  for (uint32_t bits = 0; bits < 65'536; ++bits) {
    const float value = from_bf16(static_cast<uint16_t>(bits));
    x.values.push_back(std::isfinite(value) ? value : 0);
  }
  HostTensor ones = x;
  for (double& v : ones.values) v = 1;
  const HostTensor blank = m.blank(x.shape, m.compute);
  const OpCase forward = m.add(Activation{.act = Act::kGelu}, "", {x}, {blank}),
               backward = m.add(ActivationBwd{.act = Act::kGelu}, "", {ones, x}, {blank});
  const std::vector<double> y = run_case(*backend, forward).out[0].values,
                            slope = run_case(*backend, backward).out[0].values;
  for (size_t i = 0; i < x.values.size(); ++i) {
    const double v = x.values[i], phi = std::exp(-v * v / 2) / std::sqrt(2 * M_PI);
    const double cdf = std::erfc(-v / M_SQRT2) / 2;
    // Half the distance of bf16 numbers, and what the curve may be off; the last numbers of f32 may
    // be zero.
    ASSERT_NEAR(y[i], v * cdf, std::abs(v * cdf) * 0x1p-7 + 0x1p-122) << v;
    ASSERT_NEAR(slope[i], cdf + v * phi, std::abs(cdf + v * phi) * (0x1p-8 + 0x1p-11) + 0x1p-14)
        << v;
  }
}

// TF32 keeps ten bits of a factor.
TEST(Cuda, Tf32ProductsAreClose) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/false), reference = make_reference_backend();
  for (const Op& op : {Op(Linear{}), Op(LinearBwd{})})
    for (const OpCase& c : op_cases(op.index(), DType::kF32))
      EXPECT_EQ(difference(run_case(*backend, c).out, run_case(*reference, c).out, 4e-3), "")
          << c.name;
}

TEST(Cuda, OutOfMemoryIsItsOwnKindOfError) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/false);
  try {
    backend->allocate(size_t{1} << 44);
    FAIL() << "16 TiB were granted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kExhausted);
    EXPECT_NE(std::string(e.what()).find("batch size"), std::string::npos);
  }
}

}  // namespace
}  // namespace vitrum::test
