#include "vitrum/core/join.h"

#include <fmt/format.h>

namespace vitrum {
namespace {

template <class T>
std::string joined(std::span<const T> parts, std::string_view between) {
  std::string out;
  for (const T& part : parts) {
    if (&part != parts.data()) out += between;
    out += fmt::format("{}", part);
  }
  return out;
}

}  // namespace

std::string join(std::span<const std::string> parts, std::string_view between) {
  return joined(parts, between);
}
std::string join(std::span<const int64_t> parts, std::string_view between) {
  return joined(parts, between);
}
std::string join(std::span<const float> parts, std::string_view between) {
  return joined(parts, between);
}
std::string join(std::span<const double> parts, std::string_view between) {
  return joined(parts, between);
}

}  // namespace vitrum
