#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/op_cases.h"
#include "vitrum/core/e4m3.h"

namespace vitrum::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kGuard{0xA5}, kUnwritten{0xFF};  // all ones: NaN in every float type
constexpr size_t kGuardBytes = 256;

void encode(const HostTensor& t, std::byte* to) {
  for (size_t i = 0; i < t.values.size(); ++i) {
    const double x = t.values[i];
    const auto put = [&](auto v) { std::memcpy(to + i * sizeof v, &v, sizeof v); };
    switch (t.dtype) {
      case DType::kF32: put(static_cast<float>(x)); break;
      case DType::kF64: put(x); break;
      case DType::kBF16: put(to_bf16(static_cast<float>(x))); break;
      case DType::kU8: put(static_cast<uint8_t>(x)); break;
      case DType::kE4M3: put(to_e4m3(static_cast<float>(x))); break;
      default: put(static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(x)))); break;
    }
  }
}

std::vector<double> decode(const std::byte* from, const Shape& shape, DType dtype) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto get = [&]<class T>(T v) {
      return std::memcpy(&v, from + i * sizeof v, sizeof v), v;
    };
    switch (dtype) {
      case DType::kF32: values[i] = get(0.f); break;
      case DType::kF64: values[i] = get(0.0); break;
      case DType::kBF16: values[i] = from_bf16(get(uint16_t{})); break;
      case DType::kU8: values[i] = get(uint8_t{}); break;
      case DType::kE4M3: values[i] = from_e4m3(get(uint8_t{})); break;
      default: values[i] = get(int32_t{}); break;
    }
  }
  return values;
}

// A tensor between two guard zones. It starts 16 elements into a cache line, as parameters may.
class Guarded {
 public:
  Guarded(Backend& backend, const HostTensor& t) : backend_(backend), host_(t) {
    if (!t.present) return;
    before_ = kGuardBytes + 16 * size_of(t.dtype);
    const size_t bytes = TensorView{nullptr, t.shape, t.dtype}.bytes();
    start_.assign(before_ + bytes + kGuardBytes, kGuard);
    std::fill_n(start_.begin() + static_cast<std::ptrdiff_t>(before_), bytes, kUnwritten);
    encode(t, start_.data() + before_);
    buffer_ = backend.allocate(start_.size());
    backend.upload(whole(), start_.data());
  }

  TensorView view() const {
    if (!host_.present) return {};
    return {buffer_.data() + before_, host_.shape, host_.dtype};
  }
  void fetch() {
    now_.resize(start_.size());
    if (host_.present) backend_.download(now_.data(), whole());
  }
  bool unchanged() const { return now_ == start_; }
  bool guards_intact() const {
    return std::equal(start_.begin(), start_.begin() + static_cast<std::ptrdiff_t>(before_),
                      now_.begin()) &&
           (now_.empty() ||
            std::equal(start_.end() - kGuardBytes, start_.end(), now_.end() - kGuardBytes));
  }
  HostTensor result() const {
    HostTensor t = host_;
    if (t.present) t.values = decode(now_.data() + before_, t.shape, t.dtype);
    return t;
  }

 private:
  TensorView whole() const {
    return {buffer_.data(), {static_cast<int64_t>(start_.size())}, DType::kU8};
  }

  Backend& backend_;
  const HostTensor& host_;
  Bytes start_, now_;
  size_t before_ = 0;
  Buffer buffer_;
};

double rms(const std::vector<double>& values) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

template <class Wrong>
std::string first_difference(const std::vector<HostTensor>& got,
                             const std::vector<HostTensor>& expected, const Wrong& wrong) {
  for (size_t o = 0; o < expected.size(); ++o)
    for (size_t i = 0; i < expected[o].values.size(); ++i)
      if (wrong(o, i))
        return fmt::format("output {} {} element {}: got {}, expected {}", o,
                           expected[o].shape.str(), i, got[o].values[i], expected[o].values[i]);
  return {};
}

}  // namespace

RunResult run_case(Backend& backend, const OpCase& c) {
  std::vector<Guarded> in, out;
  Operands io;
  for (const HostTensor& t : c.in) io.in.push_back(in.emplace_back(backend, t).view());
  for (const HostTensor& t : c.out) io.out.push_back(out.emplace_back(backend, t).view());
  Kernels kernels;
  kernels.push_back(backend.lower(c.op, io));
  backend.prepare(std::move(kernels))->run();

  RunResult result;
  for (size_t i = 0; i < in.size(); ++i) {
    in[i].fetch();
    if (!in[i].unchanged()) result.fault = fmt::format("{}: input {} was written to", c.name, i);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].fetch();
    if (!out[i].guards_intact())
      result.fault = fmt::format("{}: memory round output {} was written to", c.name, i);
    result.out.push_back(out[i].result());
  }
  return result;
}

std::string difference(const std::vector<HostTensor>& got, const std::vector<HostTensor>& expected,
                       double tolerance) {
  std::vector<double> scale;
  for (const HostTensor& t : expected) scale.push_back(rms(t.values));
  return first_difference(got, expected, [&](size_t o, size_t i) {
    const double a = got[o].values[i], b = expected[o].values[i];
    return !(std::abs(a - b) <= tolerance * (std::abs(b) + scale[o]));  // NaN is wrong
  });
}

std::string bit_difference(const std::vector<HostTensor>& got,
                           const std::vector<HostTensor>& expected) {
  return first_difference(got, expected, [&](size_t o, size_t i) {
    return std::memcmp(&got[o].values[i], &expected[o].values[i], sizeof(double)) != 0;
  });
}

}  // namespace vitrum::test
