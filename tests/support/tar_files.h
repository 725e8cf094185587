// Tar archives and shards of images, right or wrong in every field.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum::test {

struct TarPart {
  std::string name, data;
  char type = '0';
  std::string size = "";  // the twelve bytes of the field, where it lies
  std::string magic = {"ustar\00000", 8};
  bool intact = true;  // else with a wrong checksum
};

// One member: header, contents, padding.
std::string tar_part(const TarPart& part);
// Of whole members, with the mark of its end.
std::string tar_of(const std::vector<TarPart>& parts);
std::string pax_record(std::string_view key, std::string_view value);
// A big-endian number as GNU tar writes it: its first byte, then 11 bytes.
std::string base_256(unsigned char first, std::string_view rest);

// The lines and, behind them, their digest.
std::string shard_index_of(std::string_view lines);

}  // namespace vitrum::test
