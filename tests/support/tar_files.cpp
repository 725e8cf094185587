#include "tests/support/tar_files.h"

#include <fmt/format.h>

#include "vitrum/core/sha.h"

namespace vitrum::test {

std::string tar_part(const TarPart& part) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, std::string_view text) { header.replace(at, text.size(), text); };
  put(0, part.name.substr(0, 100));
  put(100, "0000644"), put(108, "0001750"), put(116, "0001750"), put(136, "14712345670");
  put(124, part.size.empty() ? fmt::format("{:011o}", part.data.size()) : part.size);
  put(148, "        ");
  header[156] = part.type;
  put(257, part.magic);
  unsigned sum = part.intact ? 0 : 1;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header + part.data + std::string((512 - part.data.size() % 512) % 512, '\0');
}

std::string tar_of(const std::vector<TarPart>& parts) {
  std::string all;
  for (const TarPart& part : parts) all += tar_part(part);
  return all + std::string(1024, '\0');
}

std::string pax_record(std::string_view key, std::string_view value) {
  const std::string rest = fmt::format(" {}={}\n", key, value);
  size_t length = rest.size() + 1;
  while (fmt::format("{}", length).size() + rest.size() != length) ++length;
  return fmt::format("{}{}", length, rest);
}

std::string base_256(unsigned char first, std::string_view rest) {
  std::string field(12, '\0');
  field[0] = static_cast<char>(first);
  return field.replace(12 - rest.size(), rest.size(), rest);
}

std::string shard_index_of(std::string_view lines) {
  return fmt::format("{}sha256 {}\n", lines, sha256(lines));
}

}  // namespace vitrum::test
