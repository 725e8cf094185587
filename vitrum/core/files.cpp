#include "vitrum/core/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"

namespace vitrum {
namespace {

constexpr std::string_view kTemporarySuffix = ".vitrum-tmp";
constexpr int kTemporaries = 4;  // of one file, whose leftovers its next writer looks for

// Takes errno as the failed call left it.
[[noreturn]] void fail_io(std::string_view action, const std::string& path) {
  const int code = errno;
  if (code == ENOSPC || code == EDQUOT || code == EFBIG)
    fail_exhausted("cannot {} '{}': {}; free some space or choose another directory", action, path,
                   std::strerror(code));
  if (code == ENOMEM) fail_exhausted("cannot {} '{}': {}", action, path, std::strerror(code));
  fail_input("cannot {} '{}': {}", action, path, std::strerror(code));
}

std::string directory_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Descriptor open_for_reading(const std::string& path, int flags = 0) {
  Descriptor file{retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags); })};
  if (file.fd < 0) fail_io("read", path);
  return file;
}

int open_for_writing(const std::string& path, int flags) {
  return retry([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666); });
}

struct stat status_of(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (fstat(file.fd, &status) != 0) fail_io("read", path);
  return status;
}

// Renaming onto a device or a pipe would replace it, as root even /dev/null.
void refuse_special_target(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  fail_input("cannot write '{}': it is {}", path,
             S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
}

// As read() of what was opened without blocking. The writer of a pipe may take its time, but a pipe
// that has none would be waited for for ever: one that a shell starts beside us has half a second.
ssize_t read_some(int fd, char* to, size_t size, bool started) {
  constexpr int kPause = 10, kPatience = 500;  // milliseconds
  for (int waited = 0;; waited += kPause) {
    const ssize_t n = retry([&] { return ::read(fd, to, size); });
    pollfd pipe{fd, POLLIN, 0};
    if (n < 0 && errno == EAGAIN)  // somebody has it open
      started = true, poll(&pipe, 1, -1);
    else if (n == 0 && !started && waited < kPatience)
      usleep(kPause * 1000);
    else
      return n;
  }
}

// The same for every process, so that the next writer of `path` finds what a killed one left.
std::string temporary_of(const std::string& path, int n) {
  constexpr size_t kMostBytes = 200;  // of a file's name; with what is added it may have 255
  const std::string name = std::filesystem::path(path).filename().string().substr(0, kMostBytes);
  return fmt::format("{}/.{}.{}{}", directory_of(path), name, n, kTemporarySuffix);
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whoever writes a temporary holds a lock on it, which the system drops with the process.
bool hold_temporary(int fd) {
  struct stat status {};
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  // One that looks for leftovers may have come between open and lock.
  return fstat(fd, &status) == 0 && status.st_nlink > 0;
}

void remove_if_abandoned(const std::string& temporary) {
  const Descriptor file{open_for_writing(temporary, O_NOFOLLOW | O_NONBLOCK)};
  struct stat held {
  }, named{};
  if (file.fd < 0 || fstat(file.fd, &held) != 0 || !S_ISREG(held.st_mode)) return;
  if (flock(file.fd, LOCK_EX | LOCK_NB) != 0) return;
  // The name may belong to another file by now.
  if (lstat(temporary.c_str(), &named) == 0 && same_file(held, named)) unlink(temporary.c_str());
}

bool is_temporary(const std::string& name) {
  if (!name.starts_with('.') || !name.ends_with(kTemporarySuffix)) return false;
  const std::string_view own(name.data(), name.size() - kTemporarySuffix.size());
  return !own.empty() && own.back() >= '0' && own.back() <= '9';
}

// The kernel does not write from pages that a mapped file has lost. Reading them ourselves puts
// zeros there; whoever mapped the file finds out by check_intact().
void touch(std::string_view bytes) {
  constexpr size_t kPage = 4096;
  for (size_t at = 0; at < bytes.size(); at += kPage)
    static_cast<void>(*static_cast<const volatile char*>(bytes.data() + at));
  static_cast<void>(*static_cast<const volatile char*>(&bytes.back()));
}

void sync_directory(const std::string& directory) {
  const Descriptor file = open_for_reading(directory, O_DIRECTORY);
  // EINVAL: the file system has no such notion.
  if (retry([&] { return fsync(file.fd); }) != 0 && errno != EINVAL) fail_io("sync", directory);
}

}  // namespace

std::string read_file(const std::string& path, size_t limit) {
  const Descriptor file = open_for_reading(path, O_NONBLOCK);
  const struct stat status = status_of(file, path);
  if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
    fail_input("cannot read '{}': it is a device; expected a file", path);
  const bool pipe = S_ISFIFO(status.st_mode);
  const auto refuse = [&] {
    fail_input("'{}' is larger than the {} bytes allowed here", path, limit);
  };
  const auto size = S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) : 0;
  if (size > limit) refuse();

  // Pipes and /proc have no size, and a file may grow while it is read: the end is where read()
  // says so.
  std::string text;
  for (size_t used = 0;;) {
    text.resize(std::max(used + 4096, size + 1));
    const ssize_t n = read_some(file.fd, text.data() + used, text.size() - used, !pipe || used > 0);
    if (n < 0) fail_io("read", path);
    used += static_cast<size_t>(n);
    if (used > limit) refuse();
    if (n > 0) continue;
    if (pipe && used == 0)
      fail_input("cannot read '{}': it is a pipe that no process writes to", path);
    return text.resize(used), text;
  }
}

void ensure_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && std::filesystem::is_directory(path, error)) return;
  errno = error ? error.value() : ENOTDIR;
  fail_io("make the directory", path);
}

OutputFile::OutputFile(const std::string& path, int open_flags)
    : path_(path), fd_(open_for_writing(path, open_flags)) {
  if (fd_ < 0) fail_io("write", path_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto write_some = [&] { return ::write(fd_, bytes.data(), bytes.size()); };
    ssize_t n = retry(write_some);
    if (n < 0 && errno == EFAULT) touch(bytes), n = retry(write_some);
    if (n < 0) fail_io("write", path_);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void OutputFile::sync() {
  if (retry([&] { return fsync(fd_); }) != 0) fail_io("sync", path_);
}

void OutputFile::close() {
  // Linux frees the descriptor even when close() is interrupted: never retry.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail_io("write", path_);
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), file_(create_temporary()) {}

OutputFile AtomicFile::create_temporary() {
  refuse_special_target(path_);
  OutputFile file;
  file.path_ = path_;
  for (int n = 0; n < kTemporaries; ++n) remove_if_abandoned(temporary_of(path_, n));
  for (int n = 0; file.fd_ < 0; ++n) {  // others may write the same file
    temporary_ = temporary_of(path_, n);
    file.fd_ = open_for_writing(temporary_, O_CREAT | O_EXCL);
    if (file.fd_ < 0 && errno != EEXIST) fail_io("write", path_);
    if (file.fd_ >= 0 && !hold_temporary(file.fd_)) ::close(std::exchange(file.fd_, -1));
  }
  return file;
}

AtomicFile::~AtomicFile() {
  if (!committed_) unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  file_.sync();
  replace_file(temporary_, path_);
  committed_ = true;
  file_.close();  // and with it the lock, which keeps the temporary from being taken for a leftover
}

void replace_file(const std::string& from, const std::string& path) {
  refuse_special_target(path);
  if (rename(from.c_str(), path.c_str()) != 0) fail_io("write", path);
  sync_directory(directory_of(path));
}

void write_file_atomic(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void remove_stale_temporaries(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; at != end; at.increment(ignored))
    if (is_temporary(at->path().filename().string())) remove_if_abandoned(at->path().string());
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Non-blocking, so that a pipe is refused rather than waited for.
  const Descriptor file = open_for_reading(path, O_NONBLOCK);
  const struct stat status = status_of(file, path);
  if (!S_ISREG(status.st_mode))
    fail_input("cannot read '{}': it is {}", path,
               S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  size_ = static_cast<size_t>(status.st_size);
  device_ = status.st_dev, inode_ = status.st_ino;
  if (size_ == 0) return;  // mmap refuses to map nothing
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail_io("map", path);
  data_ = static_cast<const std::byte*>(data);
  try {
    guard_.emplace(data_, size_);
  } catch (...) {
    munmap(data, size_);
    throw;
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_),
      inode_(other.inode_),
      guard_(std::move(other.guard_)) {}

// A page that the file still reaches into gives zeros without a signal: the size tells.
void MappedFile::check_intact() const {
  struct stat now {};
  const bool same = stat(path_.c_str(), &now) == 0 && now.st_dev == device_ && now.st_ino == inode_;
  if (!guard_.was_lost() && !(same && static_cast<size_t>(now.st_size) < size_)) return;
  fail_input("'{}' shrank while it was read, or its disk failed; write it anew and try again",
             path_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  constexpr size_t kBlock = 64 << 10;  // a fault maps the pages around it too, in blocks of this
  const auto begin = static_cast<size_t>(part.data() - data_) / kBlock * kBlock;
  const size_t end = static_cast<size_t>(part.data() - data_) + part.size();
  const size_t length = std::min(size_, round_up(end, kBlock)) - begin;
  madvise(const_cast<std::byte*>(data_) + begin, length, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  guard_.forget();
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace vitrum
