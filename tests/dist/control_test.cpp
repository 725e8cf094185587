// Who is still there, and what is said of it; and who may take a place among the processes.
#include "vitrum/dist/control.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <future>

#include "tests/support/expect_error.h"
#include "vitrum/dist/join.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {
namespace {

using namespace std::chrono_literals;

// Rank 0 of two, and the other end of its line: a process that says what the test writes there.
struct Line {
  explicit Line(std::chrono::seconds timeout) {
    std::array<int, 2> fds{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    other = Descriptor(fds[1]);
    std::vector<Descriptor> lines(2);
    lines[1] = Descriptor(fds[0]);
    control.emplace(0, std::move(lines), std::vector<std::string>{"rank 0 (a)", "rank 1 (b)"},
                    timeout, std::vector<pid_t>{});
  }
  void says(uint8_t frame) {
    const std::array<uint8_t, 8> head = {frame};
    EXPECT_EQ(send(other.get(), head.data(), head.size(), MSG_NOSIGNAL), 8);
  }

  Descriptor other;
  std::optional<Control> control;
};

constexpr uint8_t kDone = 1;

TEST(Control, TheFirstCauseStays) {
  Line line(60s);
  line.control->abort(ErrorKind::kInput, "the first");
  line.control->abort(ErrorKind::kFailed, "what came of it");
  EXPECT_ERROR(line.control->check(), ErrorKind::kInput, "the first");
}

// Who has finished waits for the others, and need not say so.
TEST(Control, WhoHasFinishedMayBeSilent) {
  Line line(1s);
  line.says(kDone);
  line.control->finish();
  const auto end = std::chrono::steady_clock::now() + 1500ms;
  while (std::chrono::steady_clock::now() < end) {
    EXPECT_NO_THROW(line.control->check());
    std::this_thread::sleep_for(50ms);
  }
}

int free_port() {
  const Descriptor fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

// It knows the secret, and yet it is of another run: with three processes, not with two.
TEST(Join, AProcessOfAnotherSizeTakesNoPlace) {
  const int port = free_port();
  const auto world = [&](int rank, int size) {
    return World{.launcher = "torchrun",
                 .rank = rank,
                 .size = size,
                 .local_rank = rank,
                 .local_size = size,
                 .address = "127.0.0.1",
                 .port = port,
                 .secret = "0123456789abcdef"};
  };
  const World first = world(0, 2), stray = world(1, 3), second = world(1, 2);
  auto zero = std::async(std::launch::async, [&] { return join_world(first).hosts.size(); });
  EXPECT_ERROR(join_world(stray), kRankLost, "lost rank 0");
  ASSERT_NE(zero.wait_for(0s), std::future_status::ready) << "it took the stray for its own";
  EXPECT_EQ(join_world(second).hosts.size(), 2u);
  EXPECT_EQ(zero.get(), 2u);
}

}  // namespace
}  // namespace vitrum
