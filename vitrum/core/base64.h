#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace vitrum {

std::string base64(std::string_view bytes);  // RFC 4648, padded
// Nothing where it is not exactly that: another letter, wrong padding, bits left over.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace vitrum
