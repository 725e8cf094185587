// "a, b, c", numbers in their shortest form. fmt::join takes a second to compile in every file.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace vitrum {

std::string join(std::span<const std::string> parts, std::string_view between);
std::string join(std::span<const int64_t> parts, std::string_view between);
std::string join(std::span<const float> parts, std::string_view between);
std::string join(std::span<const double> parts, std::string_view between);

}  // namespace vitrum
