// Files that somebody made to hurt whoever opens them, and files damaged by chance: every one must
// end in one clear line, soon and in little memory. Also the builders that they are made with.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/archives.h"
#include "tests/support/png_files.h"

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
HostileFiles hostile_gifs();
HostileFiles hostile_bmps();
HostileFiles hostile_tiffs();  // need libtiff
HostileFiles hostile_heifs();  // need libheif
HostileFiles hostile_tars();   // shards of images
HostileFiles hostile_shard_indexes();

// The same case from bytes at hand.
HostileFile hostile(std::string name, std::string part, std::string bytes);

std::string safetensors_of(std::string_view header, size_t data_bytes);

// What zlib makes of `block`, so many times, without the time that takes.
std::string zlib_repeated(std::string_view block, size_t times);
// Progressive, of scans that say nothing.
std::string jpeg_of_scans(uint32_t height, uint32_t width, int scans);
std::string gif_of(int width, int height);  // of one colour
// Little-endian, with one strip; tags are whole numbers.
std::string tiff_of(std::vector<std::pair<uint16_t, uint32_t>> tags, std::string_view data);

}  // namespace vitrum::test
