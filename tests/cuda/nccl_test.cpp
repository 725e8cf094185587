// The card's side of several processes, as far as it goes without a card: who is connected how,
// what is asked of NCCL (a library that stands in for it, opened in the same way), and the choices
// that all processes share.
#include "vitrum/cuda/host/nccl.h"

#include <gmock/gmock.h>

#include <numeric>
#include <thread>

#include "tests/support/expect_error.h"
#include "vitrum/cuda/host/choices.h"
#include "vitrum/cuda/host/choose_link.h"

namespace vitrum::cuda {
namespace {

TEST(ChooseLink, TakesNcclWhereEachProcessHasACardOfItsOwn) {
  EXPECT_EQ(choose_link({{"a", ""}, {"b", ""}, {"c", ""}}).problem, "");
  EXPECT_EQ(choose_link({{"a", ""}}).problem, "");
  const LinkChoice shared = choose_link({{"a", ""}, {"b", ""}, {"c", ""}, {"b", ""}});
  EXPECT_EQ(shared.rank, 3u);
  EXPECT_EQ(shared.problem, "shares a card with rank 1");
  const LinkChoice without = choose_link({{"a", ""}, {"b", "has no NCCL"}});
  EXPECT_EQ(without.rank, 1u);
  EXPECT_EQ(without.problem, "has no NCCL");
}

TEST(ChooseLink, LearnsOfEachOtherByText) {
  const LinkOffer offer =
      LinkOffer::of(LinkOffer{"0badcafe", "is turned off\nby two lines"}.text());
  EXPECT_EQ(offer.card, "0badcafe");
  EXPECT_EQ(offer.problem, "is turned off\nby two lines");
  EXPECT_EQ(LinkOffer::of("a\n").problem, "");
}

TEST(ChooseLink, IsAskedByTheEnvironment) {
  EXPECT_EQ(nccl_wish(nullptr), "");
  EXPECT_EQ(nccl_wish("1"), "1");
  EXPECT_ERROR(nccl_wish("yes"), ErrorKind::kUsage, "VITRUM_NCCL=yes: expected 0 or 1");
}

const NcclLibrary& fake() {
  static const NcclLibrary library(VITRUM_FAKE_NCCL);
  return library;
}

TEST(Nccl, IsOpenedOrSaysWhyNot) {
  EXPECT_EQ(fake().problem(), "");
  EXPECT_EQ(fake().version(), "2.21.5");
  EXPECT_THAT(NcclLibrary("./no-such-library.so").problem(),
              testing::HasSubstr("cannot be opened"));
  EXPECT_THAT(NcclLibrary("libm.so.6").problem(), testing::HasSubstr("has no nccl"));
}

// Every rank in a thread of its own.
template <class Body>
void on_ranks(int size, const Body& body) {
  NcclId id{};
  fake().check(fake().GetUniqueId(&id), "a number");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      NcclWorld world(fake(), id, rank, size);
      body(world, rank);
    });
  for (std::thread& thread : threads) thread.join();
}

// Everybody to everybody, itself too; two messages between each two, of lengths of their own, and
// empty ones.
TEST(Nccl, MovesBytesInOrder) {
  for (const int size : {1, 2, 5})
    on_ranks(size, [&](NcclWorld& world, int rank) {
      const auto length = [](int from, int to, int number) {
        return static_cast<size_t>(number == 1 ? 0 : 10 * from + 3 * to + number);
      };
      const auto first = [](int from, int to, int number) {
        return static_cast<unsigned char>(100 * number + 16 * from + to);
      };
      std::vector<std::vector<std::byte>> out, in;
      std::vector<NcclWorld::Send> sends;
      std::vector<NcclWorld::Receive> receives;
      out.reserve(100), in.reserve(100);
      for (int other = 0; other < size; ++other)
        for (int number = 0; number < 3; ++number) {
          std::vector<std::byte>& bytes = out.emplace_back(length(rank, other, number));
          for (size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::byte>(first(rank, other, number) + i);
          sends.push_back({other, bytes});
          receives.push_back({other, in.emplace_back(length(other, rank, number))});
        }
      for (int turn = 0; turn < 3; ++turn) {
        for (auto& bytes : in) std::fill(bytes.begin(), bytes.end(), std::byte{0});
        world.exchange(sends, receives, nullptr);
        size_t next = 0;
        for (int other = 0; other < size; ++other)
          for (int number = 0; number < 3; ++number, ++next)
            for (size_t i = 0; i < in[next].size(); ++i)
              ASSERT_EQ(in[next][i], static_cast<std::byte>(first(other, rank, number) + i));
      }
    });
}

TEST(Nccl, FailsWhereAnotherIsGone) {
  on_ranks(2, [](NcclWorld& world, int rank) {
    if (rank == 1) return world.abort();
    std::vector<std::byte> in(4);
    const NcclWorld::Receive receive{1, in};
    EXPECT_ERROR(world.exchange({}, std::span(&receive, 1), nullptr), ErrorKind::kFailed,
                 "NCCL: remote error (an exchange)");
    EXPECT_ERROR(world.check(), ErrorKind::kFailed, "NCCL: remote error");
    world.abort();
    world.check();
  });
}

TEST(Choices, AreTheSameAfterTheirText) {
  Choices choices{.holds_for = "NVIDIA H200, cuBLASLt 130000", .of = {}};
  std::iota(choices.of["1x2x3nn"].begin(), choices.of["1x2x3nn"].end(), 0xfedcba9876543210);
  choices.of["4x5x6nt-bias"] = {};
  const Choices again = Choices::from(choices.text());
  EXPECT_EQ(again.holds_for, choices.holds_for);
  EXPECT_EQ(again.of, choices.of);
}

TEST(Choices, SayNothingWhereTheyAreCutShortOrOfAnotherKind) {
  Choices choices{.holds_for = "a card", .of = {{"a", {1}}, {"b", {2}}}};
  const std::string text = choices.text();
  const Choices cut = Choices::from(text.substr(0, text.size() - 5));
  EXPECT_EQ(cut.of.size(), 1u);
  EXPECT_EQ(cut.of.at("a"), choices.of["a"]);
  EXPECT_EQ(Choices::from("").holds_for, "");
  EXPECT_TRUE(Choices::from("something else\na " + text).of.empty());
}

}  // namespace
}  // namespace vitrum::cuda
