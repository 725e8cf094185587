#include "vitrum/fetch/digest.h"

#include <fmt/format.h>

#include <filesystem>

#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"

namespace vitrum {

std::string digest(DigestKind kind, std::string_view bytes) {
  if (kind == DigestKind::kSha256) return sha256(bytes);
  return sha1(fmt::format("blob {}", bytes.size()) + '\0' + std::string(bytes));
}

bool file_is(const std::string& path, int64_t size, DigestKind kind, std::string_view hex) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const MappedFile file(path);
  if (static_cast<int64_t>(file.size()) != size) return false;
  const std::string found =
      digest(kind, {reinterpret_cast<const char*>(file.bytes().data()), file.size()});
  file.check_intact();
  return found == hex;
}

}  // namespace vitrum
