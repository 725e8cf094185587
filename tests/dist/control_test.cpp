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
#include "vitrum/dist/proof.h"
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

// What to do about a process that is gone helps nobody whose disk is full.
TEST(Control, AdviceIsForALostProcess) {
  Line failed(60s);
  failed.control->set_advice("start it again");
  failed.control->abort(ErrorKind::kExhausted, "no room");
  try {
    failed.control->check();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no room");
  }
  Line lost(60s);
  lost.control->set_advice("start it again");
  lost.other = {};
  EXPECT_ERROR(lost.control->explain(1), kRankLost, "rank 1 (b) died at step 0; start it again");
}

// The first process says itself why it ends, and may be gone before the second one is.
TEST(Control, WhatTheFirstSaidIsNotSaidAgain) {
  std::array<int, 2> fds{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
  Descriptor first(fds[0]);
  std::vector<Descriptor> lines(2);
  lines[0] = Descriptor(fds[1]);
  Control second(1, std::move(lines), {"rank 0 (a)", "rank 1 (b)"}, 60s, {});
  const std::array<uint8_t, 8> verdict = {2, static_cast<uint8_t>(ErrorKind::kInput), 0, 0, 3};
  ASSERT_EQ(send(first.get(), verdict.data(), verdict.size(), MSG_NOSIGNAL), 8);
  ASSERT_EQ(send(first.get(), "why", 3, MSG_NOSIGNAL), 3);
  EXPECT_ERROR(second.explain(0), ErrorKind::kInput, "why");
  first = {};
  std::this_thread::sleep_for(300ms);  // it looks ten times a second
  EXPECT_FALSE(second.speaks());
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

// What each connection begins with, written out: another version might send something else.
struct Greeting {
  uint32_t protocol = 0x56490001;
  int32_t rank = 1, size = 2;
  uint32_t use = 1;
};
constexpr const char* kSecret = "0123456789abcdef";

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

World rank_of_two(int rank, int port) {
  return {.launcher = "torchrun",
          .rank = rank,
          .size = 2,
          .local_rank = rank,
          .local_size = 2,
          .address = "127.0.0.1",
          .port = port,
          .secret = kSecret};
}

// A greeting that is proved; the bytes of its answer, 0 where it is hung up on.
ssize_t greet(int port, const Greeting& greeting) {
  const sockaddr_in to = loopback(port);
  Descriptor fd;
  do {
    fd = Descriptor(socket(AF_INET, SOCK_STREAM, 0));
  } while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0);
  Nonce theirs{}, mine{};
  EXPECT_EQ(recv(fd.get(), theirs.data(), theirs.size(), MSG_WAITALL), 16);
  const std::string text(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  const Proof proof = prove(kSecret, "connects", theirs, mine, text);
  send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  send(fd.get(), mine.data(), mine.size(), MSG_NOSIGNAL);
  send(fd.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
  Proof answer{};
  return recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL);
}

TEST(Join, AProcessOfAnotherVersionTakesNoPlace) {
  const int port = free_port();
  auto zero =
      std::async(std::launch::async, [&] { return join_world(rank_of_two(0, port)).hosts.size(); });
  EXPECT_LE(greet(port, {.protocol = 0x56490002}), 0);
  EXPECT_EQ(join_world(rank_of_two(1, port)).hosts.size(), 2u);
  EXPECT_EQ(zero.get(), 2u);
}

// Whoever listens at the port of rank 0 must know the secret, too.
TEST(Join, AStrangerIsNotTakenForTheFirst) {
  const int port = free_port();
  const Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in at = loopback(port);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  const timeval limit{1, 0};
  setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  auto stranger = std::async(std::launch::async, [&] {
    for (int n = 0; n < 2; ++n) {
      const Descriptor fd(accept(listener.get(), nullptr, nullptr));
      if (!fd) return;
      std::array<char, 64> bytes{};  // first a number of its own, at last a proof of nothing
      send(fd.get(), bytes.data(), 16, MSG_NOSIGNAL);
      recv(fd.get(), bytes.data(), 64, MSG_WAITALL);
      send(fd.get(), bytes.data(), 32, MSG_NOSIGNAL);
    }
  });
  EXPECT_ERROR(join_world(rank_of_two(1, port)), ErrorKind::kUsage, "was turned away");
}

}  // namespace
}  // namespace vitrum
