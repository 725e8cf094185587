// Convolutions that are large enough for boxes of pixels, against the reference. Built everywhere;
// each test skips itself where there is no card.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/case_maker.h"
#include "tests/support/cuda.h"
#include "vitrum/cuda/conv/choose.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

using cuda::ConvKernel, cuda::ConvPass, cuda::ConvTask, cuda::kH200;

// Every kind of box and of tile: whole images, many images, edges within boxes, odd sides with a
// stride, channels that fill no stage, columns of one, two and more tiles.
const ConvTask kTasks[] = {
    {.images = 140, .height = 8, .width = 8, .channels = 64, .out = 64, .kernel = 3, .padding = 1},
    {.images = 90, .height = 7, .width = 7, .channels = 96, .out = 96, .kernel = 3, .padding = 1},
    {.images = 22,
     .height = 29,
     .width = 27,
     .channels = 96,
     .out = 160,
     .kernel = 3,
     .stride = 2,
     .padding = 1},
    {.images = 130,
     .height = 13,
     .width = 11,
     .channels = 128,
     .out = 128,
     .kernel = 1,
     .stride = 2},
    {.images = 280, .height = 4, .width = 4, .channels = 96, .out = 288, .kernel = 3, .padding = 1},
    {.images = 50, .height = 10, .width = 9, .channels = 64, .out = 128, .kernel = 5, .padding = 2},
    {.images = 9, .height = 31, .width = 33, .channels = 72, .out = 256, .kernel = 3, .padding = 1},
    // Stacked boxes: of one image and of two, whole and over the edge.
    {.images = 40, .height = 16, .width = 16, .channels = 72, .out = 64, .kernel = 3, .padding = 1},
    {.images = 21, .height = 26, .width = 23, .channels = 64, .out = 96, .kernel = 3, .padding = 1},
    {.images = 50, .height = 24, .width = 8, .channels = 128, .out = 128, .kernel = 3},
};
// The stem of a ResNet in one chunk, and another in two.
const ConvTask kStems[] = {
    {.images = 3,
     .height = 112,
     .width = 120,
     .channels = 3,
     .out = 64,
     .kernel = 7,
     .stride = 2,
     .padding = 3},
    {.images = 100,
     .height = 112,
     .width = 112,
     .channels = 3,
     .out = 32,
     .kernel = 3,
     .stride = 2,
     .padding = 1},
    // Of CIFAR's images.
    {.images = 300, .height = 32, .width = 32, .channels = 3, .out = 64, .kernel = 3, .padding = 1},
};

class CudaConv : public ::testing::TestWithParam<ConvTask> {
 protected:
  void SetUp() override { SKIP_WITHOUT_CUDA(); }
  static Shape x() {
    const ConvTask& t = GetParam();
    return {t.images, t.height, t.width, t.channels};
  }
  static Shape y() {
    const ConvTask& t = GetParam();
    return {t.images, t.down(), t.across(), t.out};
  }
  static Shape w() {
    const ConvTask& t = GetParam();
    return {t.out, t.channels, t.kernel, t.kernel};
  }
  static HostTensor weights(Maker& m) {
    const double depth = static_cast<double>(w().numel()) / static_cast<double>(w()[0]);
    return m.normal(w(), m.compute, 1 / std::sqrt(depth));
  }
  void expect_right(const OpCase& c, double tolerance = 1.6e-2) const {
    const auto backend = test::cuda(/*exact=*/true), reference = make_reference_backend();
    const RunResult result = run_case(*backend, c);
    EXPECT_EQ(result.fault, "");
    EXPECT_EQ(difference(result.out, run_case(*reference, c).out, tolerance), "") << c.name;
    EXPECT_EQ(bit_difference(run_case(*backend, c).out, result.out), "") << c.name;
  }
};

TEST_P(CudaConv, Forward) {
  const ConvTask& t = GetParam();
  const ConvKernel kernel = choose_conv(kH200, t, ConvPass::kForward);
  ASSERT_NE(kernel, ConvKernel::kUnfold);
  Maker m(DType::kBF16, kOps);
  expect_right(m.add(Conv2d{.stride = t.stride, .padding = t.padding}, "",
                     {m.normal(x(), m.compute), weights(m)}, {m.blank(y(), m.compute)}));
}

TEST_P(CudaConv, ForwardWithWhatFollows) {
  const ConvTask& t = GetParam();
  Maker m(DType::kBF16, kOps);
  const Shape channels{t.out};
  HostTensor var = m.normal(channels, kF32);
  for (double& v : var.values) v = static_cast<float>(v * v + 0.1);
  for (const bool skip : {false, true})
    // A sum near the middle between two bf16 numbers is rounded to either, and then scaled.
    expect_right(m.add(Conv2d{t.stride, t.padding, 1e-1f, Act::kRelu}, "",
                       {m.normal(x(), m.compute), weights(m), m.normal(channels, kF32, 1, 1),
                        m.normal(channels, kF32), m.normal(channels, kF32), var,
                        skip ? m.normal(y(), m.compute) : m.none()},
                       {m.blank(y(), m.compute)}),
                 6.4e-2);
}

TEST_P(CudaConv, Backward) {
  const ConvTask& t = GetParam();
  const ConvKernel kernel = choose_conv(kH200, t, ConvPass::kWeightGradient);
  ASSERT_NE(kernel, ConvKernel::kUnfold);
  Maker m(DType::kBF16, kOps);
  // The gradient of an image of few channels is wanted by nobody.
  const HostTensor dx = kernel == ConvKernel::kLines ? m.none() : m.blank(x(), m.compute);
  expect_right(m.add(Conv2dBwd{.stride = t.stride, .padding = t.padding}, "",
                     {m.normal(y(), m.compute), m.normal(x(), m.compute), weights(m)},
                     {dx, m.normal(w(), kF32)}));
}

std::string name_of_task(const ::testing::TestParamInfo<ConvTask>& info) {
  const ConvTask& t = info.param;
  return fmt::format("{}x{}x{}x{}_{}_{}_{}", t.images, t.height, t.width, t.channels, t.out,
                     t.kernel, t.stride);
}
INSTANTIATE_TEST_SUITE_P(Boxes, CudaConv, ::testing::ValuesIn(kTasks), name_of_task);
INSTANTIATE_TEST_SUITE_P(Stems, CudaConv, ::testing::ValuesIn(kStems), name_of_task);

// 1x1 convolutions take boxes where a norm follows, and for small gradients of many pixels.
INSTANTIATE_TEST_SUITE_P(
    Pixels, CudaConv,
    ::testing::Values(
        ConvTask{
            .images = 90, .height = 7, .width = 10, .channels = 96, .out = 160, .followed = true},
        // Weights that stay, of one block's columns and of several's.
        ConvTask{
            .images = 65, .height = 9, .width = 15, .channels = 64, .out = 256, .followed = true},
        ConvTask{.images = 45,
                 .height = 14,
                 .width = 14,
                 .channels = 200,
                 .out = 1024,
                 .followed = true}),
    name_of_task);

}  // namespace
}  // namespace vitrum::test
