// Files that somebody made to hurt whoever opens them, and files damaged by chance: every one must
// end in one clear line, soon and in little memory. Also the builders that they are made with.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/archives.h"

namespace vitrum::test {

struct HostileFile {
  std::string name;                    // of the case
  std::string part;                    // of the message it must end in
  std::function<std::string()> bytes;  // made when wanted: some are large
};
using HostileFiles = std::vector<HostileFile>;

HostileFiles hostile_safetensors();
HostileFiles hostile_indexes();  // beside a good one.safetensors with the tensor "a"
HostileFiles hostile_zips();
HostileFiles hostile_pickles();
HostileFiles hostile_arrays();
HostileFiles hostile_jpegs();
HostileFiles hostile_pngs();
HostileFiles hostile_webps();

// The same case from bytes at hand.
HostileFile hostile(std::string name, std::string part, std::string bytes);

std::string safetensors_of(std::string_view header, size_t data_bytes);

std::string png_chunk(std::string_view type, std::string_view data);
std::string png_of(uint32_t width, uint32_t height, int depth, int color, std::string_view more);

}  // namespace vitrum::test
