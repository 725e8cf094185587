// Which cards a build serves; needs neither a card nor CUDA.
#include "vitrum/cuda/host/architectures.h"

#include <gtest/gtest.h>

namespace vitrum::cuda {
namespace {

TEST(CudaArchitectures, RealCodeServesItsGeneration) {
  EXPECT_TRUE(runs_on("80-real", 80));
  EXPECT_TRUE(runs_on("80-real", 86));
  EXPECT_FALSE(runs_on("80-real", 75));
  EXPECT_FALSE(runs_on("80-real", 90));
  EXPECT_FALSE(runs_on("89-real", 86));
}

TEST(CudaArchitectures, OnlyHopperHasItsOwnInstructions) {
  EXPECT_TRUE(runs_on("90a-real", 90));
  EXPECT_FALSE(runs_on("90a-real", 100));
  EXPECT_FALSE(runs_on("90a-real", 89));
}

TEST(CudaArchitectures, PtxServesLaterCards) {
  EXPECT_TRUE(runs_on("80-virtual", 120));
  EXPECT_TRUE(runs_on("80", 90));
  EXPECT_FALSE(runs_on("120-virtual", 90));
}

TEST(CudaArchitectures, AnyOfSeveralWillDo) {
  constexpr std::string_view kAll = "80-real,89-real,90a-real,100-real,120-virtual";
  for (const int card : {80, 86, 89, 90, 100, 103, 120, 121}) EXPECT_TRUE(runs_on(kAll, card));
  EXPECT_FALSE(runs_on(kAll, 75));
  EXPECT_FALSE(runs_on(kAll, 110));
  EXPECT_TRUE(runs_on("native", 75)) << "whoever builds so builds for the card at hand";
  EXPECT_FALSE(runs_on("", 90));
}

}  // namespace
}  // namespace vitrum::cuda
