#include "vitrum/serve/load_client.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/support/data_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/error.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/serve/server.h"

namespace vitrum::serve {
namespace {

using std::chrono::nanoseconds;

TEST(LatencyHistogram, QuantilesAreWithinOnePercent) {
  LatencyHistogram h;
  EXPECT_EQ(h.quantile(0.5), 0);
  for (int64_t i = 1; i <= 100'000; ++i) h.add(nanoseconds(1000 * i));  // 1 us to 100 ms
  EXPECT_EQ(h.count(), 100'000u);
  for (const double q : {0.001, 0.01, 0.5, 0.9, 0.99, 0.999})
    EXPECT_NEAR(h.quantile(q), 0.1 * q, 0.01 * 0.1 * q) << q;
  EXPECT_NEAR(h.quantile(1), 0.1, 0.001);
  EXPECT_DOUBLE_EQ(h.max(), 0.1);
  EXPECT_NEAR(h.mean(), 0.05, 1e-5);
}

TEST(LatencyHistogram, TakesAnything) {
  LatencyHistogram h;
  for (int bit = 0; bit < 63; ++bit) {
    h.add(nanoseconds(int64_t{1} << bit));
    EXPECT_NEAR(h.quantile(1), h.max(), 0.01 * h.max());
  }
  h.add(nanoseconds(-5));  // a clock that went back counts as nothing
  h.add(nanoseconds::max());
  EXPECT_EQ(h.count(), 65u);
  EXPECT_EQ(h.quantile(1e-9), 0);
}

TEST(LoadUrl, HasHostPortAndPath) {
  const LoadUrl whole = parse_load_url("http://example.org:81/v2/x?y=1");
  EXPECT_EQ(whole.host, "example.org");
  EXPECT_EQ(whole.port, "81");
  EXPECT_EQ(whole.path, "/v2/x?y=1");
  const LoadUrl least = parse_load_url("http://[::1]");
  EXPECT_EQ(least.host, "::1");
  EXPECT_EQ(least.port, "80");
  EXPECT_EQ(least.path, "/v1/classify");
  for (const char* bad : {"", "127.0.0.1:80", "https://a/", "http://", "http://:80", "http://a:/",
                          "http://a/b c", "http://a/\r\nX: y"})
    EXPECT_THROW(parse_load_url(bad), Error) << bad;
}

class LoadClientTest : public testing::Test {
 protected:
  LoadClientTest() {
    test::write_tiny_model(dir_ / "tiny", test::tiny_rgb_model());
    ServeOptions options;
    options.listen = "127.0.0.1:0", options.device = "cpu", options.threads = 2;
    options.models = {{"tiny", dir_ / "tiny"}};
    std::promise<void> ready;
    ServerHooks hooks;
    hooks.listening = [&](const std::string&) { ready.set_value(); };
    server_ = std::make_unique<Server>(options, std::move(hooks));
    thread_ = std::thread([this] { server_->run(); });
    ready.get_future().wait();
  }
  ~LoadClientTest() override { server_->stop(), thread_.join(); }

  LoadOptions options(const std::string& path, double rate) const {
    return {.url = "http://127.0.0.1:" + std::to_string(server_->port()) + path,
            .rate = rate,
            .connections = 3,
            .seconds = 0.2,
            .warm_up = 0.05,
            .bodies = {},
            .headers = {}};
  }

  test::TempDir dir_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

TEST_F(LoadClientTest, SendsEveryRequestThatIsDue) {
  LoadOptions o = options("/v1/classify", 200);
  o.bodies = {encode_png(test::gradient(3, 40, 60)), "no photo"};
  o.patience = 60;
  const LoadResult r = run_load(o);
  EXPECT_EQ(r.answered + r.unanswered, 40u);
  EXPECT_EQ(r.unanswered, 0u);
  EXPECT_EQ(r.statuses.at(200), 20u);  // in turn
  EXPECT_EQ(r.statuses.at(422), 20u);
  EXPECT_EQ(r.latency.count(), 20u);  // errors are quick, and would flatter
}

TEST_F(LoadClientTest, AsFastAsAnswersComeWithoutARate) {
  const LoadResult r = run_load(options("/v2/health/ready", 0));
  EXPECT_GT(r.answered, 0u);
  EXPECT_EQ(r.unanswered, 0u);
  EXPECT_EQ(r.statuses.size(), 1u);
}

TEST_F(LoadClientTest, SaysWhatIsWrong) {
  LoadOptions o = options("/", 10);
  o.headers = {"no colon"};
  EXPECT_THROW(run_load(o), Error);
  o = options("/", 10);
  o.url = "http://127.0.0.1:1/";
  EXPECT_THROW(run_load(o), Error);
}

}  // namespace
}  // namespace vitrum::serve
