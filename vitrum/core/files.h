// Files: whole reads, read-only maps, and writes that appear at once or not at all. Everything that
// goes wrong throws Error naming the path: a full disk as exhausted, the rest as bad input.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "vitrum/core/mapping_guard.h"

namespace vitrum {

inline constexpr size_t kMaxText = size_t{64} << 20;  // what people write, and logs of runs

// A regular file, or a pipe that some process writes to, of at most `limit` bytes.
std::string read_file(const std::string& path, size_t limit = kMaxText);

// Makes the directory and its parents; one that exists is fine.
void ensure_directory(const std::string& path);

// Owned file descriptor with checked writes.
class OutputFile {
 public:
  OutputFile(const std::string& path, int open_flags);  // O_WRONLY is implied
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  void sync();
  void close();  // reports what the file system held back until now; the destructor cannot
  const std::string& path() const { return path_; }

 private:
  friend class AtomicFile;
  OutputFile() = default;

  std::string path_;  // what messages name
  int fd_ = -1;
};

// Writes a temporary file beside `path`; commit() puts it in place (fsync, rename, fsync of the
// directory). Without commit() the destructor removes it and `path` stays as it was. The file being
// replaced may be mapped. What killed writers of `path` left is removed first.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view bytes) { file_.write(bytes); }
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  void commit();

 private:
  OutputFile create_temporary();

  std::string path_, temporary_;
  OutputFile file_;
  bool committed_ = false;
};

void write_file_atomic(const std::string& path, std::string_view text);

// Renames a complete, synced file to `path` on the same file system and makes that last.
void replace_file(const std::string& from, const std::string& path);

// A killed process cannot clean up after itself: removes what its AtomicFiles left in `directory`,
// and nothing of a process that still runs.
void remove_stale_temporaries(const std::string& directory);

// Read-only view of a whole regular file. Where somebody cuts the file short meanwhile, what is
// missing reads as zeros: whoever uses the bytes calls check_intact() behind that, before anything
// comes of them.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Gives back the memory of the pages that `part` touches; a later read maps them anew.
  void release(std::span<const std::byte> part) const;
  // Fails where the file has become shorter than it was when it was mapped.
  void check_intact() const;
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  MappingGuard guard_;
};

}  // namespace vitrum
