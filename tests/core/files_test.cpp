#include "vitrum/core/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace vitrum {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Files, WritesAndReadsBack) {
  const TempDir dir;
  const std::string path = dir / "a.txt", text("one\0two\n", 8);
  write_file_atomic(path, "something longer that is replaced");
  write_file_atomic(path, text);
  EXPECT_EQ(read_file(path), text);
  EXPECT_EQ(text_of(MappedFile(path).bytes()), text);
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(Files, NewFilesFollowTheUmask) {
  const TempDir dir;
  const mode_t before = umask(027);
  write_file_atomic(dir / "a", "x");
  umask(before);
  struct stat status {};
  ASSERT_EQ(stat((dir / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(Files, EmptyFile) {
  const TempDir dir;
  write_file_atomic(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
  EXPECT_EQ(MappedFile(dir / "empty").size(), 0u);
}

TEST(Files, ReadsFilesWithoutASize) { EXPECT_FALSE(read_file("/proc/self/status").empty()); }

TEST(Files, ReadLimit) {
  const TempDir dir;
  write_file_atomic(dir / "a", std::string(100, 'x'));
  EXPECT_EQ(read_file(dir / "a", 100).size(), 100u);
  EXPECT_ERROR(read_file(dir / "a", 99), ErrorKind::kInput, "larger than the 99 bytes");
}

TEST(Files, MissingFilesAreNamed) {
  const TempDir dir;
  const std::string path = dir / "none";
  EXPECT_ERROR(read_file(path), ErrorKind::kInput, path + "': No such file");
  EXPECT_ERROR(MappedFile{path}, ErrorKind::kInput, path);
  EXPECT_ERROR(write_file_atomic(path + "/below", "x"), ErrorKind::kInput, "No such file");
}

TEST(Files, SpecialFilesAreRefused) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(MappedFile{dir / "pipe"}, ErrorKind::kInput, "not a regular file");
  EXPECT_ERROR(write_file_atomic(dir / "pipe", "x"), ErrorKind::kInput, "not a regular file");
  EXPECT_ERROR(write_file_atomic("/dev/null", "x"), ErrorKind::kInput, "not a regular file");
  EXPECT_ERROR(write_file_atomic(dir.path(), "x"), ErrorKind::kInput, "is a directory");
  EXPECT_ERROR(MappedFile{dir.path()}, ErrorKind::kInput, "is a directory");
  EXPECT_ERROR(read_file(dir.path()), ErrorKind::kInput, "directory");
}

TEST(Files, EnsureDirectory) {
  const TempDir dir;
  ensure_directory(dir / "a/b/c");
  ensure_directory(dir / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
  write_file_atomic(dir / "file", "x");
  EXPECT_ERROR(ensure_directory(dir / "file"), ErrorKind::kInput, "file");
  EXPECT_ERROR(ensure_directory(dir / "file/below"), ErrorKind::kInput, "Not a directory");
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TempDir dir;
  write_file_atomic(dir / "a", "old");
  {
    AtomicFile file(dir / "a");
    file.write("new");
    EXPECT_EQ(dir.entries(), 2u);
  }
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, AMapOfTheReplacedFileKeepsItsBytes) {
  const TempDir dir;
  write_file_atomic(dir / "a", "old");
  const MappedFile map(dir / "a");
  write_file_atomic(dir / "a", "new");
  EXPECT_EQ(text_of(map.bytes()), "old");
  EXPECT_EQ(read_file(dir / "a"), "new");
}

TEST(AtomicFile, FullDevice) {
  OutputFile file("/dev/full", 0);
  EXPECT_ERROR(file.write("x"), ErrorKind::kExhausted, "/dev/full': No space left");
}

TEST(AtomicFile, WriteFailureKeepsTheOldFile) {
  const TempDir dir;
  const std::string path = dir / "a";
  write_file_atomic(path, "old");
  {
    const FileSizeLimit limit(1000);
    EXPECT_ERROR(write_file_atomic(path, std::string(5000, 'x')), ErrorKind::kExhausted, path);
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, FullDisk) {
  const TempDir dir;
  if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=65536") != 0)
    GTEST_SKIP() << "needs the right to mount a small file system";
  const std::string path = dir / "a";
  write_file_atomic(path, "old");
  EXPECT_ERROR(write_file_atomic(path, std::string(1 << 20, 'x')), ErrorKind::kExhausted,
               path + "': No space left");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(dir.entries(), 1u);
  umount(dir.path().c_str());
}

TEST(AtomicFile, AKilledWriterLeavesTheOldFileAndItsTemporaryIsSwept) {
  const TempDir dir;
  write_file_atomic(dir / "a", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(dir / "a");
    file.write("half of the n");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(dir.entries(), 2u);
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(dir.entries(), 1u);
  remove_stale_temporaries(dir / "no such directory");
}

}  // namespace
}  // namespace vitrum
