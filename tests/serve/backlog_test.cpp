#include "vitrum/serve/backlog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace vitrum::serve {
namespace {

TEST(Backlog, NothingIsKnownBeforeTheFirstAnswer) {
  Backlog backlog;
  const Backlog::Place one = backlog.enter(), two = backlog.enter();
  EXPECT_EQ(backlog.seconds_to_wait(), 0);
}

TEST(Backlog, WaitsForAllBeforeIt) {
  Backlog backlog;
  Backlog::Place first = backlog.enter(Backlog::Clock::now() - std::chrono::seconds(1));
  first.answered();                         // took one second or a little more
  EXPECT_EQ(backlog.seconds_to_wait(), 0);  // nobody is before it
  std::vector<Backlog::Place> places;
  for (int i = 0; i < 8; ++i) places.push_back(backlog.enter());
  EXPECT_NEAR(backlog.seconds_to_wait(), 8, 4);
  const double before = backlog.seconds_to_wait();
  places.resize(4);  // given up: fewer wait, and nothing was learnt
  EXPECT_DOUBLE_EQ(backlog.seconds_to_wait(), before / 2);
}

TEST(Backlog, IdleTimeIsNoTimeOfAnAnswer) {
  Backlog backlog;
  const auto hour = std::chrono::hours(1);
  backlog.enter(Backlog::Clock::now() - hour).give_up();
  Backlog::Place late = backlog.enter();
  late.answered();
  const Backlog::Place next = backlog.enter();
  EXPECT_LT(backlog.seconds_to_wait(), 60);
}

}  // namespace
}  // namespace vitrum::serve
