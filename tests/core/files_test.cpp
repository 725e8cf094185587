#include "vitrum/core/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/file_calls.h"
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

// A shell's <(..) and its pipes: what has a writer is read, even if that takes its time.
TEST(Files, ReadsPipesThatAreWritten) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream pipe(dir / "pipe");  // waits for a reader
    pipe << "first" << std::flush;
    usleep(20'000);
    pipe << " and last";
  });
  EXPECT_EQ(read_file(dir / "pipe"), "first and last");
  writer.join();
}

TEST(Files, DoesNotWaitForAPipeThatNothingWritesTo) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read_file(dir / "pipe"), ErrorKind::kInput, "a pipe that no process writes to");
}

TEST(Files, DoesNotReadDevices) {
  EXPECT_ERROR(read_file("/dev/zero"), ErrorKind::kInput, "is a device");
  const TempDir dir;
  std::filesystem::create_symlink("/dev/zero", dir / "metrics.csv");
  EXPECT_ERROR(read_file(dir / "metrics.csv"), ErrorKind::kInput, "is a device");
}

// Nothing is read without a limit, also where no size is known beforehand.
TEST(Files, LimitsPipesToo) {
  const TempDir dir;
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::signal(SIGPIPE, SIG_IGN);
  std::thread writer([&] {
    std::ofstream pipe(dir / "pipe");
    for (const std::string block(1 << 16, 'x'); pipe << block << std::flush;) {
    }
  });
  EXPECT_ERROR(read_file(dir / "pipe", 1 << 20), ErrorKind::kInput, "larger than the 1048576");
  writer.join();
  for (const size_t size : {100, 101}) {
    std::thread exact([&] { std::ofstream(dir / "pipe") << std::string(size, 'x'); });
    if (size == 100)
      EXPECT_EQ(read_file(dir / "pipe", 100).size(), 100u);
    else
      EXPECT_ERROR(read_file(dir / "pipe", 100), ErrorKind::kInput, "larger than the 100");
    exact.join();
  }
  std::ofstream(dir / "large").close();
  std::filesystem::resize_file(dir / "large", kMaxText + 1);
  EXPECT_ERROR(read_file(dir / "large"), ErrorKind::kInput, "larger than");
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

// After a crash of the machine there is the old file or the new one, whole: the bytes are on the
// disk before the name is, and the name before anyone is told.
TEST(AtomicFile, SyncsBytesThenNamesThenDirectory) {
  const TempDir dir;
  const std::string name = std::filesystem::path(dir.path()).filename().string();
  const test::FileCalls calls;
  write_file_atomic(dir / "a", "12345");
  EXPECT_THAT(calls.made(),
              testing::ElementsAre("sync .a.0.vitrum-tmp, 5 bytes", "rename .a.0.vitrum-tmp to a",
                                   "sync directory " + name));
}

TEST(AtomicFile, ReplacedFilesAreSyncedToo) {
  const TempDir dir;
  write_file_atomic(dir / "part", "x");
  const std::string name = std::filesystem::path(dir.path()).filename().string();
  const test::FileCalls calls;
  replace_file(dir / "part", dir / "a");
  EXPECT_THAT(calls.made(), testing::ElementsAre("rename part to a", "sync directory " + name));
}

TEST(AtomicFile, LongNamesHaveATemporaryToo) {
  const TempDir dir;
  const std::string longest(255, 'x');
  write_file_atomic(dir / longest, "1");
  write_file_atomic(dir / longest, "2");
  EXPECT_EQ(read_file(dir / longest), "2");
  EXPECT_EQ(dir.entries(), 1u);
}

// One writer of the same file finishes, sweeps and starts anew while another is at work.
TEST(AtomicFile, TheTemporaryOfALiveWriterStays) {
  const TempDir dir;
  AtomicFile slow(dir / "a");
  slow.write("slow");
  write_file_atomic(dir / "a", "fast");
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(read_file(dir / "a"), "fast");
  slow.commit();
  EXPECT_EQ(read_file(dir / "a"), "slow");
  EXPECT_EQ(dir.entries(), 1u);
}

TEST(AtomicFile, FilesOfOthersStay) {
  const TempDir dir;
  const std::vector<std::string> theirs = {"notes.vitrum-tmp", ".vitrum-tmp", ".a.vitrum-tmp",
                                           ".a.0.vitrum-tmp.bak"};
  for (const std::string& name : theirs) std::ofstream(dir / name) << "theirs";
  std::filesystem::create_symlink("notes.vitrum-tmp", dir / ".a.1.vitrum-tmp");
  std::filesystem::create_directory(dir / ".a.2.vitrum-tmp");
  write_file_atomic(dir / "a", "x");
  remove_stale_temporaries(dir.path());
  for (const std::string& name : theirs) EXPECT_EQ(read_file(dir / name), "theirs") << name;
  EXPECT_EQ(dir.entries(), theirs.size() + 3);
}

TEST(AtomicFile, AKilledWriterLeavesTheOldFileAndItsTemporaryIsSwept) {
  const TempDir dir;
  write_file_atomic(dir / "a", "old");
  const auto kill_writer = [&] {
    const pid_t child = fork();
    if (child == 0) {
      AtomicFile file(dir / "a");
      file.write("half of the n");
      kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  };
  kill_writer();
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(dir.entries(), 2u);
  write_file_atomic(dir / "b", "of another name");
  EXPECT_EQ(dir.entries(), 3u);
  kill_writer();
  write_file_atomic(dir / "a", "new");  // which finds what was left
  EXPECT_EQ(dir.entries(), 2u);
  kill_writer();
  remove_stale_temporaries(dir.path());
  EXPECT_EQ(dir.entries(), 2u);
  remove_stale_temporaries(dir / "no such directory");
}

}  // namespace
}  // namespace vitrum
