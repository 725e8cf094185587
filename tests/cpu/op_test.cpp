// Every op of the CPU backend against the reference, for each instruction set and number of
// threads.
#include <gtest/gtest.h>

#include <array>

#include "tests/support/op_cases.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

using OpParam = std::tuple<size_t, DType, Isa>;

std::string name_of_isa(Isa isa) { return isa == Isa::kAvx2 ? "avx2" : "avx512"; }
std::string name_of_param(const ::testing::TestParamInfo<OpParam>& info) {
  const auto& [op, dtype, isa] = info.param;
  return op_name(op) + "_" + std::string(name_of(dtype)) + "_" + name_of_isa(isa);
}
bool has(Isa isa) { return isa == Isa::kAvx2 ? cpu_features().avx2 : cpu_features().avx512; }

class CpuOp : public ::testing::TestWithParam<OpParam> {
 protected:
  void SetUp() override {
    if (!has(isa())) GTEST_SKIP() << "this processor has no " << name_of_isa(isa());
  }
  static DType dtype() { return std::get<DType>(GetParam()); }
  static Isa isa() { return std::get<Isa>(GetParam()); }
  static std::vector<OpCase> cases() { return op_cases(std::get<size_t>(GetParam()), dtype()); }
  static std::unique_ptr<Backend> cpu(int threads) {
    return make_cpu_backend({.threads = threads, .max_isa = isa()});
  }
};

TEST_P(CpuOp, AgreesWithTheReference) {
  const auto reference = make_reference_backend(), cpu1 = cpu(1);
  const double tolerance = dtype() == DType::kF32 ? 2e-5 : 1.6e-2;
  for (const OpCase& c : cases()) {
    const RunResult result = run_case(*cpu1, c);
    EXPECT_EQ(result.fault, "");
    EXPECT_EQ(difference(result.out, run_case(*reference, c).out, c.looser * tolerance), "")
        << c.name;
  }
}

TEST_P(CpuOp, SameBitsForAnyNumberOfThreads) {
  const auto cpu1 = cpu(1);
  const std::array others = {cpu(2), cpu(3), cpu(4), cpu(8)};
  for (const OpCase& c : cases()) {
    const RunResult alone = run_case(*cpu1, c);
    for (size_t i = 0; i < others.size(); ++i) {
      const RunResult together = run_case(*others[i], c);
      EXPECT_EQ(together.fault, "");
      EXPECT_EQ(bit_difference(together.out, alone.out), "") << c.name << ", backend " << i;
    }
  }
}

TEST_P(CpuOp, AbsentOutputsChangeNothing) {
  const auto cpu3 = cpu(3);
  for (const OpCase& c : cases()) ASSERT_EQ(optional_output_fault(*cpu3, c), "");
}

INSTANTIATE_TEST_SUITE_P(Grid, CpuOp,
                         ::testing::Combine(::testing::Range(size_t{0}, kOps),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(Isa::kAvx2, Isa::kAvx512)),
                         name_of_param);

class CpuFusion : public ::testing::TestWithParam<Isa> {};

TEST_P(CpuFusion, FusedEqualsPlain) {
  if (!has(GetParam())) GTEST_SKIP() << "this processor has no " << name_of_isa(GetParam());
  const auto cpu = make_cpu_backend({.threads = 2, .max_isa = GetParam()});
  EXPECT_EQ(fusion_fault(*cpu, DType::kF32), "");
  EXPECT_EQ(fusion_fault(*cpu, DType::kBF16), "");
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuFusion, ::testing::Values(Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return name_of_isa(info.param); });

}  // namespace
}  // namespace vitrum::test
