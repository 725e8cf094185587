// Checksums, as lower-case hexadecimal.
#pragma once
#include <string>
#include <string_view>

namespace vitrum {

enum class DigestKind {
  kSha256,
  kGitBlob,  // what git calls a file's contents: SHA-1 of "blob <size>\0" and the bytes
};

std::string digest(DigestKind kind, std::string_view bytes);
// Whether a regular file of exactly `size` bytes with this digest is there.
bool file_is(const std::string& path, int64_t size, DigestKind kind, std::string_view hex);

}  // namespace vitrum
