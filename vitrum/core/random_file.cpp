#include "vitrum/core/random_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum {

// Without blocking, so that a pipe is refused rather than waited for.
RandomFile::RandomFile(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status {};
  if (fd_ < 0) {
    if (errno == EMFILE || errno == ENFILE)
      fail_exhausted("{}: cannot be opened: {}", path, std::strerror(errno));
    fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    fail_input("{}: is not a regular file", path);
  }
  size_ = status.st_size;
  modified_ = status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

RandomFile::~RandomFile() {
  if (fd_ >= 0) ::close(fd_);
}

void RandomFile::read(int64_t at, std::span<char> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_input("{}: cannot be read: {}", path_, std::strerror(errno));
    if (n == 0) fail_input("{}: ends before byte {}; it is cut short", path_, at + 1);
    at += n, to = to.subspan(static_cast<size_t>(n));
  }
}

}  // namespace vitrum
