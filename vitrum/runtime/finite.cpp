#include "vitrum/runtime/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

template <class T, class Bad>
int64_t count(const std::byte* bytes, int64_t n, const Bad& bad) {
  const T* values = reinterpret_cast<const T*>(bytes);
  return std::count_if(values, values + n, bad);
}

bool overlap(const TensorView& a, const TensorView& b) {
  const auto *x = static_cast<const std::byte*>(a.data), *y = static_cast<const std::byte*>(b.data);
  return x < y + b.bytes() && y < x + a.bytes();
}

// Operands that the kernel did not write over, and that were no numbers already.
std::string known_before(Backend& backend, const Program::Step& step) {
  std::string text;
  for (const Program::Operand& in : step.in) {
    const bool written = std::any_of(step.out.begin(), step.out.end(), [&](const TensorView& out) {
      return out && overlap(in.view, out);
    });
    if (written || count_not_finite(backend, in.view) == 0) continue;
    text += text.empty() ? "; so are values of its operand " : " and ";
    text += (in.name.empty() ? "" : in.name + " ") + in.view.shape.str();
  }
  return text;
}

}  // namespace

int64_t count_not_finite(Backend& backend, const TensorView& view) {
  if (!is_float(view.dtype) || view.bytes() == 0) return 0;
  const auto* bytes = static_cast<const std::byte*>(view.data);
  std::vector<std::byte> copy;
  if (!backend.host_visible()) {
    copy.resize(view.bytes());
    backend.download(copy.data(), view);
    bytes = copy.data();
  }
  const int64_t n = view.shape.numel();
  const auto not_finite = [](auto x) { return !std::isfinite(x); };
  // Infinity and NaN have an exponent of all ones.
  const auto all_ones = [](uint16_t mask) {
    return [mask](uint16_t x) { return (x & mask) == mask; };
  };
  switch (view.dtype) {
    case DType::kF64: return count<double>(bytes, n, not_finite);
    case DType::kF32: return count<float>(bytes, n, not_finite);
    case DType::kF16: return count<uint16_t>(bytes, n, all_ones(0x7c00));
    default: return count<uint16_t>(bytes, n, all_ones(0x7f80));
  }
}

void require_finite(Backend& backend, const Program::Step& step, const std::string& where) {
  for (size_t i = 0; i < step.out.size(); ++i) {
    const TensorView& out = step.out[i];
    const int64_t bad = out ? count_not_finite(backend, out) : 0;
    if (bad == 0) continue;
    fail("{}{} of '{}' (kernel {}, result {}): {} of {} values are NaN or infinite{}", where,
         step.op, step.name, step.number, i, bad, out.shape.numel(), known_before(backend, step));
  }
}

}  // namespace vitrum
