// Zip archives, read in place: what PyTorch and NumPy wrap their files in. Nothing is extracted, so
// a member's name is only ever a key. What is accepted has every member inside the file and no two
// of them in the same bytes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/files.h"

namespace vitrum {

class ZipFile {
 public:
  static constexpr size_t kMaxMembers = 200'000;

  struct Member {
    std::string_view name;            // in the mapped file
    std::span<const std::byte> data;  // as stored: deflated or not
    uint64_t size = 0;                // inflated, as the archive claims
    bool deflated = false;
  };

  explicit ZipFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  size_t file_size() const { return file_.size(); }
  void check_intact() const { file_.check_intact(); }
  const std::vector<Member>& members() const { return members_; }  // sorted by name
  const Member* find(std::string_view name) const;                 // null: no such member

  // The first `out.size()` inflated bytes; fails where there are fewer, or where `whole` is asked
  // for and there are more.
  void inflate(const Member& member, std::span<std::byte> out, bool whole) const;

 private:
  struct Directory {
    uint64_t offset = 0, bytes = 0, count = 0;
  };

  Directory find_directory() const;
  Directory zip64_directory(size_t end_record) const;
  size_t read_member(size_t at, size_t end, std::vector<std::pair<size_t, size_t>>& extents);
  template <class T>
  T number(size_t at) const;  // at + sizeof(T) is within the file
  std::string_view text(size_t at, size_t length) const;

  MappedFile file_;
  std::vector<Member> members_;
};

}  // namespace vitrum
