// Files that somebody made to hurt whoever opens them, and files damaged by chance: every one must
// end in one clear line, soon and in little memory. Also the builders that they are made with.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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

template <class T>
std::string little_endian(T n) {
  return {reinterpret_cast<const char*>(&n), sizeof n};
}

std::string safetensors_of(std::string_view header, size_t data_bytes);

struct ZipMember {
  std::string name, data;  // data as it stands in the file
  bool deflated = false;
  uint64_t size = 0;       // claimed where deflated
  std::string local_name;  // in its own header, where that differs
  uint16_t flags = 0, method = 0;
  int64_t shift = 0;  // added to the directory's claim of where the member is
};
std::string zip_of(const std::vector<ZipMember>& members);
std::string deflate(std::string_view bytes);

// A PyTorch file of this pickle (without protocol and stop) and a storage "0".
std::string pytorch_of(std::string_view pickle, std::string_view storage = "");
std::string npy_of(std::string_view header, std::string_view data, int version = 1);

std::string png_chunk(std::string_view type, std::string_view data);
std::string png_of(uint32_t width, uint32_t height, int depth, int color, std::string_view more);

}  // namespace vitrum::test
