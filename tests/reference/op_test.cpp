// Every op on the reference backend: the grid itself, absent outputs, and where fused ops round.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tests/support/op_cases.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

using OpParam = std::tuple<size_t, DType>;

std::string name_of_param(const ::testing::TestParamInfo<OpParam>& info) {
  return op_name(std::get<0>(info.param)) + "_" + std::string(name_of(std::get<1>(info.param)));
}

class ReferenceOp : public ::testing::TestWithParam<OpParam> {
 protected:
  std::vector<OpCase> cases() const {
    return op_cases(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
  const std::unique_ptr<Backend> reference_ = make_reference_backend();
};

TEST_P(ReferenceOp, WritesItsOutputsAndNothingElse) {
  const std::vector<OpCase> all = cases();
  ASSERT_FALSE(all.empty()) << "no case for " << op_name(std::get<0>(GetParam()));
  for (const OpCase& c : all) {
    ASSERT_EQ(c.op.index(), std::get<0>(GetParam())) << c.name;
    const RunResult result = run_case(*reference_, c);
    EXPECT_EQ(result.fault, "");
    // Outputs start as NaN, and NaN differs from itself: this finds whatever was not written.
    EXPECT_EQ(difference(result.out, result.out, 1), "") << c.name;
  }
}

TEST_P(ReferenceOp, AbsentOutputsChangeNothing) {
  for (const OpCase& c : cases()) ASSERT_EQ(optional_output_fault(*reference_, c), "");
}

INSTANTIATE_TEST_SUITE_P(Grid, ReferenceOp,
                         ::testing::Combine(::testing::Range(size_t{0}, kOps),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         name_of_param);

TEST(ReferenceFusion, FusedEqualsPlain) {
  const auto reference = make_reference_backend();
  EXPECT_EQ(fusion_fault(*reference, DType::kF32), "");
  EXPECT_EQ(fusion_fault(*reference, DType::kBF16), "");
}

// The tools of the grid must be able to fail.
TEST(Grid, NoticesDifferences) {
  const HostTensor a{.shape = {3}, .values = {1, -2, 3}};
  HostTensor b = a;
  EXPECT_EQ(difference({b}, {a}, 1e-5), "");
  EXPECT_EQ(bit_difference({b}, {a}), "");
  b.values[1] = -2.0001;
  EXPECT_NE(difference({b}, {a}, 1e-5), "");
  EXPECT_NE(bit_difference({b}, {a}), "");
  b.values[1] = std::nan("");
  EXPECT_NE(difference({b}, {a}, 1e-5), "");
}

// A backend that writes one byte too far, or into its input.
class Careless final : public Backend {
 public:
  explicit Careless(bool into_input) : into_input_(into_input) {}
  std::string name() const override { return "careless"; }
  Buffer allocate(size_t bytes) override { return allocate_host(bytes); }
  void upload(TensorView to, const void* from) override { reference_->upload(to, from); }
  void download(void* to, TensorView from) override { reference_->download(to, from); }
  bool host_visible() const override { return true; }
  std::unique_ptr<Kernel> lower(const Op&, const Operands& io) override {
    const TensorView hit = into_input_ ? io.in[0] : io.out[0];
    const size_t where = into_input_ ? 0 : hit.bytes();
    return make_kernel([=] { static_cast<std::byte*>(hit.data)[where] ^= std::byte{1}; });
  }

 private:
  const std::unique_ptr<Backend> reference_ = make_reference_backend();
  bool into_input_;
};

TEST(Grid, NoticesStrayWrites) {
  Careless beyond(false), input(true);
  const OpCase c = op_cases(Op(Add{}).index(), DType::kF32).at(1);
  EXPECT_NE(run_case(beyond, c).fault, "");
  EXPECT_NE(run_case(input, c).fault, "");
}

}  // namespace
}  // namespace vitrum::test
