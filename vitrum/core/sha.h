// SHA-256, and the SHA-1 that git names contents by, as lower-case hexadecimal.
#pragma once
#include <string>
#include <string_view>

namespace vitrum {

std::string sha256(std::string_view bytes);
std::string sha1(std::string_view bytes);

}  // namespace vitrum
