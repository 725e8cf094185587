#include "tests/support/archives.h"

#include <zlib.h>

namespace vitrum::test {

std::string deflate(std::string_view bytes) {
  z_stream z{};
  deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, bytes.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  ::deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zip_of(const std::vector<ZipMember>& members) {
  std::string file, directory;
  for (const ZipMember& m : members) {
    const auto method = static_cast<uint16_t>(m.deflated ? 8 : m.method);
    const auto packed = static_cast<uint32_t>(m.data.size()),
               size = m.deflated ? static_cast<uint32_t>(m.size) : packed;
    const std::string& local = m.local_name.empty() ? m.name : m.local_name;
    const std::string common = little_endian<uint16_t>(20) + little_endian(m.flags) +
                               little_endian(method) + std::string(8, '\0') +
                               little_endian(packed) + little_endian(size);
    directory += "PK\1\2" + little_endian<uint16_t>(20) + common +
                 little_endian(static_cast<uint16_t>(m.name.size())) + std::string(12, '\0') +
                 little_endian(static_cast<uint32_t>(static_cast<int64_t>(file.size()) + m.shift)) +
                 m.name;
    file += "PK\3\4" + common + little_endian(static_cast<uint16_t>(local.size())) +
            std::string(2, '\0') + local + m.data;
  }
  const auto count = little_endian(static_cast<uint16_t>(members.size()));
  const std::string end = "PK\5\6" + std::string(4, '\0') + count + count +
                          little_endian(static_cast<uint32_t>(directory.size())) +
                          little_endian(static_cast<uint32_t>(file.size())) + std::string(2, '\0');
  return file + directory + end;
}

std::string pytorch_of(std::string_view pickle, std::string_view storage) {
  return zip_of({{"archive/data.pkl", "\x80\x02" + std::string(pickle) + "."},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", std::string(storage)}});
}

std::string npy_of(std::string_view header, std::string_view data, int version) {
  std::string s = "\x93NUMPY" + std::string{static_cast<char>(version), '\0'};
  if (version == 1)
    s += little_endian(static_cast<uint16_t>(header.size() + 1));
  else
    s += little_endian(static_cast<uint32_t>(header.size() + 1));
  return s + std::string(header) + "\n" + std::string(data);
}

}  // namespace vitrum::test
