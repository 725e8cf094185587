#include "vitrum/core/random_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support/expect_error.h"
#include "tests/support/measured.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

TEST(RandomFile, ReadsAnywhereAndNotPastTheEnd) {
  const TempDir dir;
  write_file_atomic(dir / "a", "0123456789");
  const RandomFile file(dir / "a");
  EXPECT_EQ(file.size(), 10);
  std::string some(3, ' ');
  file.read(4, some);
  EXPECT_EQ(some, "456");
  EXPECT_ERROR(file.read(8, some), ErrorKind::kInput, "a");
}

TEST(RandomFile, OnlyFilesAreOpened) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(RandomFile(dir / "pipe"), ErrorKind::kInput, "is not a regular file");
  EXPECT_ERROR(RandomFile(dir / ""), ErrorKind::kInput, "is not a regular file");
  EXPECT_ERROR(RandomFile(dir / "none"), ErrorKind::kInput, "No such file");
}

// A limit of the system is no fault of the file.
TEST(RandomFile, NoRoomForAnotherOneIsNotBadInput) {
  const TempDir dir;
  write_file_atomic(dir / "a", "x");
  const test::Measured result = test::measure([&] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    const RandomFile file(dir / "a");
  });
  EXPECT_EQ(result.code, static_cast<int>(ErrorKind::kExhausted));
  EXPECT_THAT(result.message, testing::HasSubstr("Too many open files"));
}

}  // namespace
}  // namespace vitrum
