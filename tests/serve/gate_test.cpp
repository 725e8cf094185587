#include "vitrum/serve/gate.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"
#include "vitrum/core/spares.h"

namespace vitrum::serve {
namespace {

TEST(ServeKeys, AnyOfTheFileOpensAndNothingElse) {
  const TempDir dir;
  ApiKeys keys;
  EXPECT_TRUE(keys.empty());
  write_file_atomic(dir / "keys", "# of the lab\n\nfirst key\r\nsecond \n");
  keys.load(dir / "keys");
  for (const char* good : {"Bearer first key", "bearer first key", "BEARER second"})
    EXPECT_TRUE(keys.allows(good)) << good;
  for (const char* bad :
       {"", "Bearer", "Bearer ", "first key", "Basic second", "Bearer  second", "Bearer second ",
        "Bearer # of the lab", "Bearer secon", "Bearer seconds"})
    EXPECT_FALSE(keys.allows(bad)) << bad;
}

TEST(ServeKeys, AFileThatCannotBeUsedChangesNothing) {
  const TempDir dir;
  ApiKeys keys;
  write_file_atomic(dir / "keys", "old\n");
  keys.load(dir / "keys");
  write_file_atomic(dir / "keys", "# none\n");
  EXPECT_ERROR(keys.load(dir / "keys"), ErrorKind::kInput, "no key");
  EXPECT_ANY_THROW(keys.load(dir / "nowhere"));
  EXPECT_TRUE(keys.allows("Bearer old"));
  write_file_atomic(dir / "keys", "new\n");
  keys.load(dir / "keys");
  EXPECT_FALSE(keys.allows("Bearer old"));
  EXPECT_TRUE(keys.allows("Bearer new"));
}

TEST(ServeHosts, OwnNamesWithAnyPort) {
  const AllowedHosts hosts("10.1.2.3:8080", {"Photos.Example"});
  for (const char* good : {"localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "10.1.2.3",
                           "photos.example", "photos.example:443"})
    EXPECT_TRUE(hosts.allows(good)) << good;
  for (const char* bad : {"", "evil.example", "photos.example.evil", "xphotos.example", "10.1.2.4",
                          "[::2]", "[", "localhost.", "localhost:1:2"})
    EXPECT_FALSE(hosts.allows(bad)) << bad;
  EXPECT_TRUE(AllowedHosts("127.0.0.1:1", {"*"}).allows("anything"));
  EXPECT_TRUE(AllowedHosts("unix:/run/x", {}).allows("anything"));
}

TEST(ServeHosts, AnOriginIsOursWithTheSamePort) {
  const AllowedHosts hosts("127.0.0.1:8080", {});
  EXPECT_TRUE(hosts.is_own_origin("http://127.0.0.1:8080", "127.0.0.1:8080"));
  EXPECT_TRUE(hosts.is_own_origin("https://A.example", "a.example"));
  for (const char* bad :
       {"null", "http://127.0.0.1", "http://127.0.0.1:8081", "ftp://127.0.0.1:8080",
        "127.0.0.1:8080", "http://127.0.0.1:8080.evil.example", ""})
    EXPECT_FALSE(hosts.is_own_origin(bad, "127.0.0.1:8080")) << bad;
}

TEST(ServeReservation, NeverPassesItsLimitAndGivesBack) {
  std::atomic<int64_t> total{0};
  auto first = Reservation::take(total, 60, 100);
  ASSERT_TRUE(first);
  EXPECT_FALSE(Reservation::take(total, 41, 100));
  {
    const auto second = Reservation::take(total, 40, 100);
    EXPECT_TRUE(second);
    EXPECT_EQ(total, 100);
  }
  Reservation moved = std::move(*first);
  EXPECT_EQ(total, 60);
  moved = {};
  EXPECT_EQ(total, 0);
}

TEST(ServeSpares, AreTakenAgainAndNotWithoutEnd) {
  Spares<int> spares;
  EXPECT_EQ(spares.take(), nullptr);
  for (int i = 0; i < 300; ++i) spares.give(std::make_unique<int>(i));
  int count = 0;
  while (spares.take()) ++count;
  EXPECT_EQ(count, 256);
}

}  // namespace
}  // namespace vitrum::serve
