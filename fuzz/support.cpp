#include "fuzz/support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace vitrum::fuzz {

MemoryFile::MemoryFile(Input bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  if (fd_ < 0) throw std::runtime_error("no memory file");
  OutputFile(path(), O_TRUNC).write(std::as_bytes(bytes));
}

MemoryFile::~MemoryFile() { close(fd_); }

Folder::Folder() : path_(std::filesystem::temp_directory_path() / "vitrum-fuzz-XXXXXX") {
  if (!mkdtemp(path_.data())) throw std::runtime_error("no folder");
}

std::string Folder::put(const std::string& name, Input bytes) const {
  const std::string path = path_ + "/" + name;
  OutputFile(path, O_CREAT | O_TRUNC).write(std::as_bytes(bytes));
  return path;
}

}  // namespace vitrum::fuzz
