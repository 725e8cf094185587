// The members of a tar archive, read where they lie: ustar, pax and GNU's long names. Nothing is
// unpacked, so a name leads nowhere; links, devices, sparse files and whatever else has no contents
// of its own are refused by name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "vitrum/core/random_file.h"
#include "vitrum/core/tar_header.h"

namespace vitrum {

struct TarMember {
  std::string name;          // without "./" before it
  int64_t at = 0, size = 0;  // its contents in the archive
};

class TarReader {
 public:
  explicit TarReader(const RandomFile& file) : file_(file) {}

  // The next regular file; nothing at the end. An archive that is damaged or cut short fails.
  std::optional<TarMember> next();
  // A small one, whole; fails where it has more than `limit` bytes.
  std::string contents(const TarMember& member, int64_t limit) const;

 private:
  struct Extended;  // what stands before a header and belongs to it
  TarHeader header_at(int64_t at) const;
  std::string extension(const TarHeader& header) const;
  void take_pax(const std::string& records, Extended& extended) const;
  TarMember member_of(const TarHeader& header, const Extended& extended) const;

  const RandomFile& file_;
  int64_t at_ = 0;
};

}  // namespace vitrum
