// Zip archives and what PyTorch and NumPy put into them, right or wrong in every field.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum::test {

template <class T>
std::string little_endian(T n) {
  return {reinterpret_cast<const char*>(&n), sizeof n};
}

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

}  // namespace vitrum::test
