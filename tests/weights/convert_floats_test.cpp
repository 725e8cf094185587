#include "vitrum/weights/convert_floats.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "tests/support/expect_error.h"

namespace vitrum {
namespace {

// One tensor in memory, `shift` bytes off its alignment.
class MemorySource final : public TensorSource {
 public:
  void check_intact() const override {}
  template <class T>
  MemorySource(DType dtype, const std::vector<T>& values, size_t shift = 0) : shift_(shift) {
    const size_t bytes = values.size() * sizeof(T);
    data_.resize((bytes + shift + 7) / 8);
    if (bytes > 0)
      std::memcpy(reinterpret_cast<std::byte*>(data_.data()) + shift, values.data(), bytes);
    tensors_.push_back({"t", dtype, {static_cast<int64_t>(values.size())}, 0, bytes});
    index_names();
  }
  const std::string& path() const override { return path_; }
  std::span<const std::byte> bytes(const TensorInfo& t) const override {
    return std::as_bytes(std::span(data_)).subspan(shift_, t.bytes);
  }

 private:
  std::string path_ = "memory";
  size_t shift_;
  std::vector<uint64_t> data_;
};

std::vector<float> floats(const MemorySource& source) {
  return read_floats(source, source.at("t"));
}

float expected_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.f : 1.f;
  if (exponent == 31)
    return fraction ? std::numeric_limits<float>::quiet_NaN()
                    : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

TEST(ConvertFloats, EveryF16) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (const size_t shift : {0u, 1u}) {
    const std::vector<float> values = floats(MemorySource(DType::kF16, all, shift));
    for (size_t i = 0; i < all.size(); ++i) {
      const float expected = expected_f16(all[i]);
      if (std::isnan(expected))
        ASSERT_TRUE(std::isnan(values[i])) << i;
      else
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

TEST(ConvertFloats, OtherTypes) {
  EXPECT_EQ(floats(MemorySource(DType::kF32, std::vector<float>{1.5f, -2}, 3)),
            (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(floats(MemorySource(DType::kBF16, std::vector<uint16_t>{0x3fc0, 0xc000})),
            (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(floats(MemorySource(DType::kF64, std::vector<double>{0.1, 1e300})),
            (std::vector<float>{0.1f, std::numeric_limits<float>::infinity()}));
  EXPECT_EQ(floats(MemorySource(DType::kF32, std::vector<float>{})), std::vector<float>{});
  EXPECT_ERROR(floats(MemorySource(DType::kI64, std::vector<int64_t>{1})), ErrorKind::kInput,
               "tensor \"t\" is i64, expected floating-point numbers");
}

}  // namespace
}  // namespace vitrum
