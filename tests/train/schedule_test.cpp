#include "vitrum/train/schedule.h"

#include <gtest/gtest.h>

namespace vitrum {
namespace {

TEST(Schedule, ConstantStaysConstant) {
  const Schedule s{.lr = 3e-4, .total_steps = 100};
  for (int64_t step : {0, 1, 50, 99, 1000}) EXPECT_EQ(lr_at(s, step), 3e-4);
}

// torch.optim.lr_scheduler.CosineAnnealingLR(SGD(lr=0.1), T_max=10, eta_min=0.001).get_last_lr(),
// step by step.
TEST(Schedule, CosineAsPyTorch) {
  const Schedule s{.kind = ScheduleKind::kCosine, .lr = 0.1, .min_lr = 0.001, .total_steps = 10};
  const double expected[] = {0.1,
                             0.09757729755661012,
                             0.09054634122155991,
                             0.07959536998847742,
                             0.0657963412215599,
                             0.05050000000000001,
                             0.03520365877844011,
                             0.021404630011522585,
                             0.010453658778440107,
                             0.003422702443389901};
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_NEAR(lr_at(s, step), expected[step], 1e-15) << step;
}

// SequentialLR([LinearLR(start_factor=1/4, total_iters=3), CosineAnnealingLR(T_max=7)],
// milestones=[3]), lr = 1.
TEST(Schedule, WarmUpThenCosineAsPyTorch) {
  const Schedule s{.kind = ScheduleKind::kCosine, .lr = 1, .warmup_steps = 3, .total_steps = 10};
  const double expected[] = {0.25,
                             0.5,
                             0.75,
                             1.0,
                             0.9504844339512095,
                             0.8117449009293667,
                             0.6112604669781572,
                             0.3887395330218427,
                             0.1882550990706332,
                             0.04951556604879043};
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_NEAR(lr_at(s, step), expected[step], 1e-12) << step;
}

TEST(Schedule, LinearFallsToMinimum) {
  const Schedule s{
      .kind = ScheduleKind::kLinear, .lr = 1, .min_lr = 0.2, .warmup_steps = 2, .total_steps = 10};
  EXPECT_DOUBLE_EQ(lr_at(s, 2), 1);
  EXPECT_DOUBLE_EQ(lr_at(s, 6), 0.6);
  EXPECT_DOUBLE_EQ(lr_at(s, 9), 0.3);
  EXPECT_DOUBLE_EQ(lr_at(s, 10), 0.2);
  EXPECT_DOUBLE_EQ(lr_at(s, 99), 0.2);
}

TEST(Schedule, EpochUnitChangesBetweenEpochsOnly) {
  const Schedule s{.kind = ScheduleKind::kCosine,
                   .unit = ScheduleUnit::kEpoch,
                   .lr = 1,
                   .warmup_steps = 20,
                   .total_steps = 100,
                   .steps_per_epoch = 10};
  const Schedule epochs{
      .kind = ScheduleKind::kCosine, .lr = 1, .warmup_steps = 2, .total_steps = 10};
  for (int64_t step = 0; step < 100; ++step)
    EXPECT_DOUBLE_EQ(lr_at(s, step), lr_at(epochs, step / 10)) << step;
}

TEST(Schedule, WarmUpLongerThanTheRun) {
  const Schedule s{.kind = ScheduleKind::kCosine, .lr = 1, .warmup_steps = 9, .total_steps = 5};
  EXPECT_DOUBLE_EQ(lr_at(s, 4), 0.5);
  EXPECT_DOUBLE_EQ(lr_at(s, 9), 0);  // beyond its end the run would have nothing left
}

}  // namespace
}  // namespace vitrum
