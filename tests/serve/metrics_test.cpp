#include "vitrum/serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vitrum::serve {
namespace {

// Prometheus' buckets are cumulative: each holds what is in those below it, too.
TEST(ServeMetrics, BucketsHoldWhatIsBelowThem) {
  const double bounds[] = {1, 2, 4};
  Histogram h(bounds);
  for (const double value : {0.5, 1.0, 1.5, 3.0, 9.0}) h.add(value);
  EXPECT_EQ(h.text("x"),
            "x_bucket{le=\"1\"} 2\n"
            "x_bucket{le=\"2\"} 3\n"
            "x_bucket{le=\"4\"} 4\n"
            "x_bucket{le=\"+Inf\"} 5\n"
            "x_sum 15\n"
            "x_count 5\n");
  EXPECT_THAT(h.text("x", "route=\"a\""), testing::HasSubstr("x_bucket{route=\"a\",le=\"2\"} 3\n"));
}

}  // namespace
}  // namespace vitrum::serve
