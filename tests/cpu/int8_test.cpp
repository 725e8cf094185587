// Eight bits: how numbers are rounded, and that every unit and every way through a layer gives the
// bits of the reference.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/support/op_cases.h"
#include "vitrum/core/eight_bits.h"
#include "vitrum/core/philox.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/cpu/simd/bytes.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(EightBits, WeightsThatWereRoundedOnceStay) {
  PhiloxStream draw(3, 0, 0);
  for (int trial = 0; trial < 20'000; ++trial) {
    const auto largest = static_cast<float>(std::exp(20 * (draw.uniform() - 0.5)));
    const float scale = weight_scale(largest);
    ASSERT_GE(scale * 127, largest * (1 - 1e-7f));
    ASSERT_LE(scale * 127, largest * (1 + 1e-4f));
    ASSERT_EQ(weight_byte(largest, scale), 127);
    ASSERT_EQ(weight_scale(scale * 127), scale) << largest;
    const auto q = static_cast<int8_t>(static_cast<int>(draw.below(255)) - 127);
    const float w = scale * static_cast<float>(q);
    ASSERT_EQ(static_cast<double>(w), static_cast<double>(scale) * q);  // exact
    ASSERT_EQ(weight_byte(w, scale), q);
  }
  EXPECT_EQ(weight_scale(0), 0);
  EXPECT_EQ(weight_byte(0, 0), 0);
  EXPECT_TRUE(std::isnan(weight_scale(kNan)));
  EXPECT_TRUE(std::isnan(weight_scale(kInfinity)));
}

TEST(EightBits, ARowWithANumberThatIsNotFiniteHasNoScale) {
  for (const float bad : {kNan, kInfinity, -kInfinity})
    for (const size_t at : {0u, 2u, 4u}) {
      std::vector<float> row = {1, -2, 3, -4, 5};
      std::vector<int8_t> bytes(row.size());
      EXPECT_EQ(round_weights(row, bytes.data()), weight_scale(5));
      EXPECT_EQ(bytes.back(), 127);
      row[at] = bad;
      EXPECT_TRUE(std::isnan(round_weights(row, bytes.data()))) << bad << " at " << at;
    }
}

TEST(EightBits, RowsAreRoundedToHalfAStep) {
  PhiloxStream draw(4, 0, 0);
  for (int trial = 0; trial < 20'000; ++trial) {
    const auto low = static_cast<float>(-std::exp(8 * draw.uniform() - 4) * (trial % 5 != 0)),
               high = static_cast<float>(std::exp(8 * draw.uniform() - 4) * (trial % 7 != 0));
    const ByteRange range = byte_range(low, high);
    for (const double share : {0.0, 0.25, draw.uniform(), 1.0}) {
      const float x = low + static_cast<float>(share) * (high - low);
      const float back = range.scale * (static_cast<float>(activation_byte(x, range)) - range.zero);
      ASSERT_NEAR(back, x, 0.5001f * range.scale + 1e-6f * std::abs(x)) << low << " " << high;
    }
    ASSERT_EQ(range.scale * (static_cast<float>(activation_byte(0, range)) - range.zero), 0);
  }
  EXPECT_EQ(byte_range(0, 0).inverse, 0);
  EXPECT_TRUE(std::isnan(byte_range(0, kInfinity).scale));
  EXPECT_TRUE(std::isnan(byte_range(-3e38f, 3e38f).scale));  // the range itself is infinite
}

class Int8 : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const CpuFeatures cpu = cpu_features();
    if (GetParam() == Isa::kAvx512 && !cpu.avx512) GTEST_SKIP() << "this processor has no AVX-512";
    if (GetParam() == Isa::kAvxVnni && !cpu.avx_vnni)
      GTEST_SKIP() << "this processor has no AVX-VNNI";
  }
  HostTensor normal(Shape shape, double deviation = 1, double mean = 0) {
    HostTensor t{.shape = shape, .values = {}};
    for (int64_t i = 0; i < shape.numel(); ++i)
      t.values.push_back(static_cast<float>(mean + deviation * draw_.normal()));
    return t;
  }
  static std::vector<HostTensor> run(Backend& backend, const HostTensor& x, const HostTensor& w,
                                     const HostTensor& bias) {
    const Shape y = x.shape.with_last(w.shape[0]);
    RunResult result = run_case(
        backend, {"int8", QLinear{}, {x, w, bias}, {HostTensor{.shape = y, .values = {}}}});
    EXPECT_EQ(result.fault, "");
    return result.out;
  }
  static HostTensor none() { return {.shape = {}, .values = {}, .present = false}; }

  const std::unique_ptr<Backend> reference_ = make_reference_backend();
  const std::unique_ptr<Backend> cpu_ = make_cpu_backend({.threads = 2, .max_isa = GetParam()});
  PhiloxStream draw_{5, 0, 0};
};

std::string name_of_isa(const testing::TestParamInfo<Isa>& info) {
  switch (info.param) {
    case Isa::kAuto: return "auto";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvxVnni: return "avx_vnni";
    case Isa::kAvx512: return "avx512";
    default: return "portable";
  }
}
INSTANTIATE_TEST_SUITE_P(Isa, Int8,
                         testing::Values(Isa::kAuto, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512,
                                         Isa::kTiles),
                         name_of_isa);

// Odd rows, columns and depths; slices of the depth; few rows and many, which go other ways.
TEST_P(Int8, TheBitsOfTheReference) {
  struct Size {
    int64_t rows, columns, depth;
  };
  for (const Size& s : {Size{1, 1, 1}, Size{5, 33, 63}, Size{33, 17, 65}, Size{31, 65, 200},
                        Size{70, 129, 64}, Size{197, 40, 770}, Size{9, 2050, 19},
                        Size{1025, 24, 40}, Size{1100, 150, 71}, Size{7, 9, 3072}}) {
    const HostTensor x = normal({s.rows, s.depth}, 2, 0.7), w = normal({s.columns, s.depth}, 0.1),
                     bias = s.rows % 2 ? normal({s.columns}) : none();
    EXPECT_EQ(bit_difference(run(*cpu_, x, w, bias), run(*reference_, x, w, bias)), "")
        << s.rows << " x " << s.columns << " x " << s.depth;
  }
}

// The largest sums there are: nothing saturates on the way.
TEST_P(Int8, TheLargestSums) {
  for (const double sign : {1.0, -1.0})
    for (const int64_t depth : {64, 4096, 65'536}) {
      HostTensor x = normal({3, depth}, 0, 1), w = normal({5, depth}, 0, sign);
      x.values[0] = 0, w.values[1] = 0;
      const auto y = run(*cpu_, x, w, none());
      EXPECT_EQ(bit_difference(y, run(*reference_, x, w, none())), "");
      EXPECT_NEAR(y[0].values[6], sign * static_cast<double>(depth),
                  1e-3 * static_cast<double>(depth));
    }
}

// Rows of zeros, of numbers too small to divide by, of one value, of one that outweighs all others,
// with zeros of either sign.
TEST_P(Int8, RowsOfAllKinds) {
  constexpr int64_t kDepth = 70;
  HostTensor x = normal({7, kDepth}), w = normal({20, kDepth});
  const auto row = [](HostTensor& t, int64_t r, auto value) {
    for (int64_t i = 0; i < kDepth; ++i)
      t.values[static_cast<size_t>(r * kDepth + i)] = static_cast<float>(value(i));
  };
  row(x, 1, [](int64_t) { return 0.0; });
  row(x, 2, [](int64_t i) { return 1e-40 * static_cast<double>(i % 5); });
  row(x, 3, [](int64_t) { return -3.5; });
  row(x, 4, [](int64_t i) { return i == 11 ? 570.0 : 0.01 * static_cast<double>(i % 7); });
  row(x, 5, [](int64_t i) { return i % 2 ? -0.0 : 0.0; });
  row(w, 1, [](int64_t) { return 0.0; });
  row(w, 2, [](int64_t i) { return 1e-42 * static_cast<double>(i); });
  row(w, 3, [](int64_t i) { return i == 60 ? -1e30 : 1.0; });
  EXPECT_EQ(bit_difference(run(*cpu_, x, w, none()), run(*reference_, x, w, none())), "");
}

// What is not finite makes its own row, or its own column, NaN, and no other.
TEST_P(Int8, NotFiniteStaysWhereItIs) {
  for (const float bad : {kNan, kInfinity, -kInfinity})
    for (const int64_t at : {0, 17, 69}) {
      HostTensor x = normal({40, 70}), w = normal({33, 70});
      const auto good = run(*cpu_, x, w, none());
      x.values[static_cast<size_t>(5 * 70 + at)] = bad;
      w.values[static_cast<size_t>(9 * 70 + at)] = bad;
      const auto y = run(*cpu_, x, w, none());
      for (size_t r = 0; r < 40; ++r)
        for (size_t c = 0; c < 33; ++c) {
          const double value = y[0].values[r * 33 + c];
          if (r == 5 || c == 9)
            ASSERT_TRUE(std::isnan(value)) << r << ", " << c;
          else
            ASSERT_EQ(value, good[0].values[r * 33 + c]) << r << ", " << c;
        }
    }
}

// A row depends neither on how many there are nor on its place.
TEST_P(Int8, ARowIsItsOwn) {
  const HostTensor x = normal({1200, 50}, 3), w = normal({70, 50});
  const auto all = run(*cpu_, x, w, none());
  for (const int64_t first : {0, 1, 31, 640, 1199}) {
    const int64_t count = std::min<int64_t>(37, 1200 - first);
    HostTensor part{.shape = {count, 50}, .values = {}};
    part.values.assign(x.values.begin() + first * 50, x.values.begin() + (first + count) * 50);
    const auto some = run(*cpu_, part, w, none());
    for (int64_t i = 0; i < count * 70; ++i)
      ASSERT_EQ(some[0].values[static_cast<size_t>(i)],
                all[0].values[static_cast<size_t>(first * 70 + i)]);
  }
}

// ---- attention ----
struct Heads {
  int64_t batch, tokens, heads, size;
  bool bias = false;
  int64_t masks = 0;
};
class Int8Attention : public Int8 {
 protected:
  HostTensor qkv(const Heads& h, double deviation = 1) {
    return normal({h.batch, h.tokens, 3 * h.heads * h.size}, deviation, 0.2);
  }
  // Number d of part 0 (q), 1 (k) or 2 (v) of a token.
  static double& at(HostTensor& t, const Heads& h, int64_t b, int64_t token, int64_t part,
                    int64_t head, int64_t d) {
    return t.values[static_cast<size_t>(
        (((b * h.tokens + token) * 3 + part) * h.heads + head) * h.size + d)];
  }
  static std::vector<double> attend(Backend& backend, const Heads& h, const HostTensor& x,
                                    const HostTensor& bias = none(),
                                    const HostTensor& mask = none()) {
    const Shape y = {x.shape[0], h.tokens, h.heads * h.size};
    RunResult result = run_case(backend, {"int8",
                                          QAttention{.heads = h.heads},
                                          {x, none(), bias, mask},
                                          {HostTensor{.shape = y, .values = {}}}});
    EXPECT_EQ(result.fault, "");
    return result.out[0].values;
  }
  void expect_bits(const Heads& h, const HostTensor& x, const HostTensor& bias = none(),
                   const HostTensor& mask = none()) {
    const auto ours = attend(*cpu_, h, x, bias, mask),
               stated = attend(*reference_, h, x, bias, mask);
    ASSERT_EQ(ours.size(), stated.size());
    for (size_t i = 0; i < ours.size(); ++i)
      ASSERT_TRUE(ours[i] == stated[i] || (std::isnan(ours[i]) && std::isnan(stated[i])))
          << ours[i] << " for " << stated[i] << " at " << i << " of " << h.tokens << " tokens, "
          << h.heads << " heads of " << h.size;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Int8Attention,
                         testing::Values(Isa::kAuto, Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512,
                                         Isa::kTiles),
                         name_of_isa);

// Heads that are cut in two and heads that are not; tokens and sizes with edges of all kinds.
TEST_P(Int8Attention, TheBitsOfTheReference) {
  for (const Heads& h :
       {Heads{1, 1, 1, 1}, Heads{1, 2, 3, 17}, Heads{2, 7, 2, 24}, Heads{1, 31, 1, 33},
        Heads{1, 33, 2, 64}, Heads{1, 65, 1, 80}, Heads{3, 49, 4, 32}, Heads{1, 197, 3, 64},
        Heads{5, 64, 3, 31}, Heads{1, 257, 1, 128}, Heads{1, 130, 13, 20}}) {
    expect_bits(h, qkv(h));
    expect_bits(h, qkv(h, 6));  // sharp: one weight or two, and many that are rounded to 0
  }
}

TEST_P(Int8Attention, BiasAndMask) {
  for (const Heads& h : {Heads{2, 49, 3, 32, true, 0}, Heads{6, 49, 2, 32, true, 3},
                         Heads{4, 70, 1, 24, false, 2}, Heads{1, 16, 2, 20, true, 1}}) {
    HostTensor mask = h.masks ? normal({h.masks, h.tokens, h.tokens}, 1) : none();
    for (size_t i = 0; i < mask.values.size(); i += 3) mask.values[i] = i % 2 ? -100 : -kInfinity;
    expect_bits(h, qkv(h), h.bias ? normal({h.heads, h.tokens, h.tokens}, 2) : none(), mask);
  }
}

// Against attention in f32: half a step of the bytes, and no more where all weights are alike.
TEST_P(Int8Attention, IsNearAttentionInF32) {
  const Heads h{2, 197, 3, 64};
  const HostTensor x = qkv(h);
  const auto bytes = attend(*cpu_, h, x);
  const RunResult plain = run_case(
      *reference_, {"f32",
                    Attention{.heads = h.heads},
                    {x, none()},
                    {HostTensor{.shape = {h.batch, h.tokens, h.heads * h.size}, .values = {}}}});
  double off = 0, size = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    off += std::pow(bytes[i] - plain.out[0].values[i], 2);
    size += std::pow(plain.out[0].values[i], 2);
  }
  EXPECT_LT(std::sqrt(off / size), 0.02);
  EXPECT_GT(std::sqrt(off / size), 1e-4);  // or it was not rounded at all
}

// Scores and weighted sums as large as they get; rows of zeros; numbers too small to divide by.
TEST_P(Int8Attention, ExtremesOfAllKinds) {
  const Heads h{1, 70, 2, 40};
  HostTensor x = qkv(h);
  for (int64_t d = 0; d < h.size; ++d) {
    for (int64_t part = 0; part < 3; ++part) at(x, h, 0, 3, part, 0, d) = 0;
    at(x, h, 0, 5, 0, 0, d) = at(x, h, 0, 6, 1, 0, d) = at(x, h, 0, 7, 2, 0, d) = -1e4;
    at(x, h, 0, 8, 0, 0, d) = at(x, h, 0, 9, 1, 0, d) = 1e-41 * static_cast<double>(d);
    at(x, h, 0, 10, 0, 1, d) = d % 2 ? 1e30 : -1e30;  // scores of 1e30, and of infinity
    at(x, h, 0, 11, 1, 1, d) = d % 2 ? 1e20 : -1e20;
  }
  for (int64_t t = 0; t < h.tokens; ++t) at(x, h, 0, t, 2, 0, 4) = 0, at(x, h, 0, t, 2, 0, 5) = 1;
  expect_bits(h, x);
  const Heads same{1, 300, 1, 64};
  HostTensor one = normal({1, same.tokens, 3 * same.size}, 0, 1);
  expect_bits(same, one);
  for (const double v : attend(*cpu_, same, one)) ASSERT_NEAR(v, 1, 1e-6);
}

// A query that is not finite is a row of NaN, a key all rows of its head, a value one channel.
TEST_P(Int8Attention, NotFiniteStaysWhereItIs) {
  const Heads h{2, 37, 2, 24};
  const HostTensor clean = qkv(h);
  const auto good = attend(*cpu_, h, clean);
  for (const float bad : {kNan, kInfinity, -kInfinity})
    for (const int64_t part : {0, 1, 2}) {
      HostTensor x = clean;
      at(x, h, 1, 33, part, 1, 7) = bad;
      const auto y = attend(*cpu_, h, x);
      for (int64_t b = 0, i = 0; b < h.batch; ++b)
        for (int64_t t = 0; t < h.tokens; ++t)
          for (int64_t head = 0; head < h.heads; ++head)
            for (int64_t d = 0; d < h.size; ++d, ++i) {
              const bool lost =
                  b == 1 && head == 1 && (part != 0 || t == 33) && (part != 2 || d == 7);
              const double value = y[static_cast<size_t>(i)];
              if (lost)
                ASSERT_TRUE(std::isnan(value)) << part << ": " << t << ", " << d;
              else
                ASSERT_EQ(value, good[static_cast<size_t>(i)]) << part << ": " << t << ", " << d;
            }
      expect_bits(h, x);
    }
}

// An image depends neither on how many there are, nor on whether heads are cut in two.
TEST_P(Int8Attention, AnImageIsItsOwn) {
  const Heads h{7, 50, 3, 32}, one{1, 50, 3, 32};
  const HostTensor x = qkv(h);
  const auto all = attend(*cpu_, h, x);
  const auto values = static_cast<int64_t>(x.values.size()) / h.batch;
  for (const int64_t b : {0, 3, 6}) {
    HostTensor part{.shape = {1, one.tokens, 3 * one.heads * one.size}, .values = {}};
    part.values.assign(x.values.begin() + b * values, x.values.begin() + (b + 1) * values);
    const auto alone = attend(*cpu_, one, part);
    for (size_t i = 0; i < alone.size(); ++i)
      ASSERT_EQ(alone[i], all[static_cast<size_t>(b) * alone.size() + i]);
  }
}

// Every unit that this processor has, over products with edges of all kinds.
TEST(ByteUnits, GiveTheSameSums) {
  using namespace cpu;
  const CpuFeatures has = cpu_features();
  std::vector<const ByteUnit*> units;
  if (has.avx2) units.push_back(&kBytesAvx2);
  if (has.avx_vnni) units.push_back(&kBytesAvxVnni);
  if (has.avx512_vnni) units.push_back(&kBytesAvx512Vnni);
  if (has.amx_int8) units.push_back(&kBytesAmx);
  PhiloxStream draw(6, 0, 0);
  for (const int64_t rows : {1, 7, 8, 9, 16, 17, 31, 32, 33, 100})
    for (const int64_t columns : {1, 15, 16, 17, 32, 40, 64})
      for (const int64_t depth : {1, 64, 65, 128, 800}) {
        std::vector<uint32_t> a(static_cast<size_t>(packed_byte_words(rows, depth))),
            b(static_cast<size_t>(packed_byte_words(columns, depth)));
        for (auto* words : {&a, &b})
          for (uint32_t& word : *words) word = draw.next_u32();
        for (const bool accumulate : {false, true}) {
          const auto product = [&](const ByteUnit& unit) {
            std::vector<int32_t> c(static_cast<size_t>(rows * (columns + 3)), 7);
            unit.multiply({.a = a.data(),
                           .b = b.data(),
                           .c = c.data(),
                           .ldc = columns + 3,
                           .rows = rows,
                           .columns = columns,
                           .depth = depth,
                           .accumulate = accumulate});
            return c;
          };
          const std::vector<int32_t> expected = product(kBytesPortable);
          for (const ByteUnit* unit : units)
            ASSERT_EQ(product(*unit), expected)
                << unit->name << " " << rows << " x " << columns << " x " << depth;
        }
      }
}

}  // namespace
}  // namespace vitrum::test
