// What the entries share.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "fuzz/entries.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum::fuzz {

inline std::string_view text_of(Input bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file without a place on disk.
class MemoryFile {
 public:
  explicit MemoryFile(Input bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// A folder for readers that look for files by their names.
class Folder {
 public:
  Folder();
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string put(const std::string& name, Input bytes) const;  // its path
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// An Error is the right answer to a bad file, if it blames the file in one line. What people write
// themselves may be wrong usage, too.
template <class Body>
void judge(const Body& body, ErrorKind other = ErrorKind::kInput) {
  try {
    body();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    if ((error.kind() != ErrorKind::kInput && error.kind() != other) || what.empty() ||
        what.find('\n') != what.npos)
      std::abort();
  }
}

}  // namespace vitrum::fuzz
