// The 512 bytes before each member of a tar archive: ustar, and what GNU tar made of it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrum {

inline constexpr int64_t kTarBlock = 512;

struct TarHeader {
  std::array<char, kTarBlock> bytes{};

  std::string name() const;  // with ustar's prefix
  int64_t size() const;      // -1 where that is no number from 0 to 2^63 - 1
  char type() const { return bytes[156]; }
  bool is_file() const { return type() == '0' || type() == '\0' || type() == '7'; }
  bool is_end() const;     // nothing but zeros
  bool is_intact() const;  // the checksum is right
};

// Of a regular file; the same bytes for the same name and size, whoever writes it and when. Names
// have up to 100 bytes.
TarHeader tar_header(std::string_view name, int64_t size);

// Up to the next block.
constexpr int64_t tar_padding(int64_t size) { return (kTarBlock - size % kTarBlock) % kTarBlock; }

}  // namespace vitrum
