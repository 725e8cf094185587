// What launchers say, and what processes prove to each other.
#include "vitrum/dist/world.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <thread>

#include "tests/support/expect_error.h"
#include "vitrum/dist/mesh.h"
#include "vitrum/dist/proof.h"

namespace vitrum {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<World> world(const Variables& variables) {
  return world_of([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(World, OfTorchrun) {
  const Variables set = {{"RANK", "3"},           {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "3"},     {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}};
  const World one = *world(set);
  EXPECT_EQ(one.rank, 3);
  EXPECT_EQ(one.size, 4);
  EXPECT_TRUE(one.one_machine());
  EXPECT_EQ(one.address, "127.0.0.1");  // whatever the machine is called elsewhere
  EXPECT_EQ(one.port, 29500);
  Variables agent = set;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(world(agent)->port, 29501);
  Variables several = set;
  several["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_ERROR(world(several), ErrorKind::kUsage, "VITRUM_SECRET");
  several["VITRUM_SECRET"] = "0123456789abcde";  // too short to be one
  EXPECT_ERROR(world(several), ErrorKind::kUsage, "VITRUM_SECRET");
  several["VITRUM_SECRET"] = "0123456789abcdef";
  EXPECT_EQ(world(several)->address, "host");
}

TEST(World, OfSrun) {
  Variables set = {{"SLURM_PROCID", "5"},
                   {"SLURM_STEP_NUM_TASKS", "8"},
                   {"SLURM_LOCALID", "1"},
                   {"SLURM_STEP_NUM_NODES", "2"},
                   {"SLURM_JOB_ID", "77"},
                   {"SLURM_STEP_NODELIST", "node[03-04],other"},
                   {"VITRUM_SECRET", "0123456789abcdef"}};
  const World two = *world(set);
  EXPECT_EQ(two.local_size, 4);
  EXPECT_EQ(two.address, "node03");
  EXPECT_GE(two.port, 20000);
  EXPECT_EQ(world(set)->port, two.port);
  set["SLURM_STEP_ID"] = "3";  // steps of a job may run at once
  EXPECT_NE(world(set)->port, two.port);
  set["SLURM_STEP_NUM_TASKS"] = "7";
  EXPECT_EQ(world(set)->local_size, 4);
  set["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(world(set)->address, "127.0.0.1");
  // The script of a job is no step of it.
  EXPECT_FALSE(world({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}));
}

TEST(World, OfMpirun) {
  const World world_ = *world({{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_NAMESPACE", "123"}});
  EXPECT_EQ(world_.rank, 1);
  EXPECT_TRUE(world_.one_machine());
  EXPECT_GT(world_.port, 0);
}

TEST(World, OfNobody) {
  EXPECT_FALSE(world({}));
  EXPECT_FALSE(world({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_ERROR(world({{"RANK", "0"}, {"WORLD_SIZE", "two"}}), ErrorKind::kUsage, "WORLD_SIZE=two");
  EXPECT_ERROR(world({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}), ErrorKind::kUsage,
               "rank 2 of 2");
  EXPECT_ERROR(world({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), ErrorKind::kUsage, "MASTER_PORT");
}

std::string hex(const Proof& proof) {
  std::string text;
  for (const uint8_t byte : proof) text += fmt::format("{:02x}", byte);
  return text;
}

// RFC 4231, cases 2, 3 and 6.
TEST(Proof, IsHmacSha256) {
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'),
                            "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// What one side has shown in one greeting is of no use in another, nor to the other side.
TEST(Proof, IsOfOneGreetingAndOneSide) {
  const Nonce a = {1}, b = {2};
  const Proof proof = prove("secret", "connects", a, b, "rank 1");
  EXPECT_TRUE(same(proof, prove("secret", "connects", a, b, "rank 1")));
  for (const Proof& other :
       {prove("secret", "accepts", a, b, "rank 1"), prove("secret", "connects", b, b, "rank 1"),
        prove("secret", "connects", a, a, "rank 1"), prove("secret", "connects", b, a, "rank 1"),
        prove("secret", "connects", a, b, "rank 2"), prove("other", "connects", a, b, "rank 1")})
    EXPECT_FALSE(same(proof, other));
}

// Two processes that are not at the same place of the program find out before bytes are mixed up.
TEST(Mesh, BothSidesAreAtTheSameExchange) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  std::vector<Descriptor> to_second(2), to_first(2);
  to_second[1] = Descriptor(fds[0]), to_first[0] = Descriptor(fds[1]);
  Mesh first(std::move(to_second)), second(std::move(to_first));
  const std::array<std::byte, 4> four{};
  std::array<std::byte, 8> eight{};
  std::thread sender([&] {
    const Communicator::Send send{1, four};
    first.exchange({&send, 1}, {}, [] {});
  });
  const Communicator::Receive receive{0, eight};
  EXPECT_ERROR(second.exchange({}, {&receive, 1}, [] {}), ErrorKind::kFailed,
               "rank 0 is at exchange 1 with 4 bytes; expected exchange 1 with 8");
  sender.join();
}

}  // namespace
}  // namespace vitrum
