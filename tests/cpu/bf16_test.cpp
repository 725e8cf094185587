// Products of bf16 operands on the CPU: packing, edges, linear layers, attention and convolution,
// for every unit that multiplies tiles. "tiles" is AMX in plain loops and runs everywhere; the
// others are skipped, visibly, on processors without their instructions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "tests/support/case_maker.h"
#include "tests/support/training_graph.h"
#include "vitrum/cpu/backend.h"
#include "vitrum/reference/reference.h"

namespace vitrum::test {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr double kTolerance = 1.6e-2;  // of bf16 results, as in cpu_op_test.cpp

std::string name_of_isa(Isa isa) {
  return isa == Isa::kTiles ? "tiles" : isa == Isa::kAmx ? "amx" : "avx512_bf16";
}
bool has(Isa isa) {
  const CpuFeatures cpu = cpu_features();
  return isa == Isa::kTiles || (isa == Isa::kAmx ? cpu.amx_bf16 : cpu.avx512_bf16);
}

class CpuBf16 : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!has(GetParam()))
      GTEST_SKIP() << cpu_features().brand << " has no " << name_of_isa(GetParam())
                   << ", or the system does not let us use it: NOT TESTED HERE";
    if (!unit()) GTEST_SKIP() << "VITRUM_ISA does not allow it: NOT TESTED HERE";
    ASSERT_EQ(unit()->name, name_of_isa(GetParam()));
  }
  static std::unique_ptr<Backend> cpu(int threads) {
    return make_cpu_backend({.threads = threads, .max_isa = GetParam()});
  }
  static const cpu::TileUnit* unit() { return dynamic_cast<cpu::CpuBackend&>(*cpu(1)).tiles(); }
};
INSTANTIATE_TEST_SUITE_P(Unit, CpuBf16, ::testing::Values(Isa::kTiles, Isa::kAvx512Bf16, Isa::kAmx),
                         [](const auto& info) { return name_of_isa(info.param); });

// ---- packing and products ----

// A matrix of `lines` x `depth`, as it is and in memory: in f32 or bf16, line by line or across,
// with rows longer than what is read.
struct Operand {
  std::vector<float> values;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  cpu::TileSource source{};

  Operand(int64_t lines, int64_t depth, bool bf16, bool along, uint64_t seed) {
    PhiloxStream draw(seed, 0, 0);
    const int64_t stride = (along ? depth : lines) + 3;
    wide.assign(static_cast<size_t>((along ? lines : depth) * stride), NAN);
    for (int64_t i = 0; i < lines * depth; ++i) {
      // A quarter of a bf16 step off in f32: packing must round to the nearest.
      const float exact = from_bf16(to_bf16(static_cast<float>(draw.normal())));
      const int64_t line = i / depth, d = i % depth;
      values.push_back(exact);
      wide[static_cast<size_t>(along ? line * stride + d : d * stride + line)] =
          bf16 ? exact : exact * (1 + 0x1p-10f);
    }
    for (float x : wide) narrow.push_back(to_bf16(x));
    source = {bf16 ? cpu::Array{narrow.data(), kBF16} : cpu::Array{wide.data(), kF32}, 0, stride,
              along};
  }
};

std::vector<uint32_t> packed(const cpu::SimdKernels& simd, const Operand& x, cpu::TileSide side,
                             int64_t lines, int64_t depth) {
  const auto size = static_cast<size_t>(cpu::packed_words(lines, depth));
  std::vector<uint32_t> to(size + 16, 0xdeadbeefu);
  simd.tiles->pack(x.source, side, lines, depth, to.data(), cpu::band_words(depth));
  for (size_t i = size; i < to.size(); ++i) EXPECT_EQ(to[i], 0xdeadbeefu);
  return to;
}

void check_product(const cpu::SimdKernels& simd, const cpu::TileUnit& unit, int64_t rows,
                   int64_t columns, int64_t depth, int how) {
  const bool bf16 = how & 1, along = how & 2, accumulate = how & 4;
  const Operand a(rows, depth, bf16, along, 1), b(columns, depth, !bf16, along, 2);
  const auto left = packed(simd, a, cpu::TileSide::kLeft, rows, depth),
             right = packed(simd, b, cpu::TileSide::kRight, columns, depth);
  constexpr float kGuard = 77;
  const int64_t ldc = columns + 5;
  std::vector<float> c(static_cast<size_t>(rows * ldc + 5), kGuard);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j)
      c[static_cast<size_t>(r * ldc + j)] = accumulate ? 0.5f : NAN;
  unit.multiply({left.data(), right.data(), c.data(), ldc, rows, columns, depth, accumulate});
  for (int64_t i = 0; i < ssize(c); ++i) {
    const int64_t r = i / ldc, j = i % ldc;
    double expected = accumulate ? 0.5 : 0;
    for (int64_t d = 0; r < rows && j < columns && d < depth; ++d)
      expected += static_cast<double>(a.values[static_cast<size_t>(r * depth + d)]) *
                  static_cast<double>(b.values[static_cast<size_t>(j * depth + d)]);
    const float got = c[static_cast<size_t>(i)];
    if (r >= rows || j >= columns)
      ASSERT_EQ(got, kGuard) << "past the edge of row " << r << ", column " << j;
    else
      ASSERT_NEAR(got, expected, 1e-5 * std::sqrt(static_cast<double>(depth)))
          << rows << " x " << columns << " x " << depth << ", way " << how << ", row " << r
          << ", column " << j;
  }
}

TEST_P(CpuBf16, MultipliesEveryShape) {
  constexpr std::array<std::array<int64_t, 3>, 12> kShapes = {{{1, 1, 1},
                                                               {1, 17, 2},
                                                               {16, 16, 32},
                                                               {17, 15, 33},
                                                               {32, 32, 64},
                                                               {31, 33, 31},
                                                               {33, 64, 100},
                                                               {5, 48, 384},
                                                               {40, 20, 385},
                                                               {64, 96, 96},
                                                               {37, 5, 1001},
                                                               {49, 49, 49}}};
  for (const cpu::SimdKernels* simd : {&cpu::kSimdAvx2, &cpu::kSimdAvx512}) {
    if (simd == &cpu::kSimdAvx512 && !cpu_features().avx512) continue;
    for (const auto& [rows, columns, depth] : kShapes)
      for (int how = 0; how < 8; ++how)
        ASSERT_NO_FATAL_FAILURE(check_product(*simd, *unit(), rows, columns, depth, how));
  }
}

// Zeros fill up what is missing, and must not meet the infinities of a neighbour.
TEST_P(CpuBf16, InfinityStaysInItsRow) {
  const auto cpu1 = cpu(1);
  Maker m(kBF16, 0);
  HostTensor x = m.normal({3, 33}, kBF16);
  x.values[33 + 32] = INFINITY;
  const OpCase c{
      "", Linear{}, {x, m.normal({5, 33}, kBF16), m.none(), m.none()}, {m.blank({3, 5}, kBF16)}};
  const std::vector<double> y = run_case(*cpu1, c).out[0].values;
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isfinite(y[i]), i / 5 != 1) << i;
}

// ---- ops ----

std::vector<OpCase> grid() {
  std::vector<OpCase> all;
  for (size_t op = 0; op < kOps; ++op)
    for (const char* name :
         {"Linear", "LinearBwd", "Attention", "AttentionBwd", "Conv2d", "Conv2dBwd"})
      if (op_name(op) == name)
        for (OpCase& c : op_cases(op, kBF16)) all.push_back(std::move(c));
  return all;
}

struct LinearSize {
  int64_t rows, in, out;
};
// Several chunks of rows, slices of depth and blocks of columns; many rows and few; edges
// everywhere.
constexpr std::array<LinearSize, 5> kLarge = {
    {{613, 200, 72}, {197, 768, 300}, {3100, 40, 130}, {1, 400, 70}, {1200, 97, 600}}};

void add_large(Maker& m, const LinearSize& size, Act act, float drop) {
  const auto& [rows, in, out] = size;
  const HostTensor x = m.normal({rows, in}, kBF16),
                   w = m.normal({out, in}, kBF16, 1 / std::sqrt(static_cast<double>(in))),
                   y = m.blank({rows, out}, kBF16), rng = m.rng_if(drop);
  m.add(Linear{act, drop, 7}, "large", {x, w, m.normal({out}, kBF16), rng}, {y});
  const HostTensor saved = act == Act::kNone ? m.none() : m.normal(y.shape, kBF16);
  m.add(LinearBwd{.act = act, .drop = drop, .site = 7}, "large",
        {m.normal(y.shape, kBF16), x, w, saved, rng},
        {m.blank(x.shape, kBF16), m.normal(w.shape, kF32), m.normal({out}, kF32)});
}
std::vector<OpCase> large() {
  Maker m(kBF16, 1);
  for (const LinearSize& size : kLarge) add_large(m, size, Act::kNone, 0);
  add_large(m, {530, 66, 130}, Act::kGelu, 0.1f);
  return m.cases;
}
std::vector<OpCase> all_cases() {
  std::vector<OpCase> all = grid();
  for (OpCase& c : large()) all.push_back(std::move(c));
  return all;
}

TEST_P(CpuBf16, AgreesWithTheReference) {
  const auto reference = make_reference_backend(), cpu2 = cpu(2);
  for (const OpCase& c : all_cases()) {
    const RunResult result = run_case(*cpu2, c);
    EXPECT_EQ(result.fault, "");
    EXPECT_EQ(difference(result.out, run_case(*reference, c).out, c.looser * kTolerance), "")
        << c.name;
  }
}

TEST_P(CpuBf16, SameBitsForAnyNumberOfThreads) {
  const auto cpu1 = cpu(1), cpu3 = cpu(3), cpu8 = cpu(8);
  for (const OpCase& c : all_cases()) {
    const std::vector<HostTensor> alone = run_case(*cpu1, c).out;
    EXPECT_EQ(bit_difference(run_case(*cpu3, c).out, alone), "") << c.name;
    EXPECT_EQ(bit_difference(run_case(*cpu8, c).out, alone), "") << c.name;
  }
}

TEST_P(CpuBf16, AbsentOutputsChangeNothing) {
  const auto cpu3 = cpu(3);
  for (const OpCase& c : grid()) ASSERT_EQ(optional_output_fault(*cpu3, c), "");
}

TEST_P(CpuBf16, FusedEqualsPlain) { EXPECT_EQ(fusion_fault(*cpu(2), kBF16), ""); }

// Rows [first, first + count) of a case's x alone: the same bits as among all the others, in
// whatever kernel and at whatever place of a block.
TEST_P(CpuBf16, RowsDoNotDependOnTheirBatch) {
  const auto cpu2 = cpu(2);
  for (const auto& [rows, in, out] : {LinearSize{700, 450, 200}, LinearSize{413, 96, 33}}) {
    Maker m(kBF16, 2);
    const HostTensor x = m.normal({rows, in}, kBF16), w = m.normal({out, in}, kBF16, 0.1),
                     bias = m.normal({out}, kBF16);
    const auto linear = [&](const HostTensor& some) {
      return run_case(*cpu2, {"",
                              Linear{Act::kGelu},
                              {some, w, bias, m.none()},
                              {m.blank({some.shape[0], out}, kBF16)}})
          .out[0]
          .values;
    };
    const std::vector<double> all = linear(x);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {13, 21}, {300, 113}}) {
      HostTensor part{.shape = {count, in}, .dtype = kBF16};
      part.values.assign(x.values.begin() + first * in, x.values.begin() + (first + count) * in);
      const std::vector<double> expected(all.begin() + first * out,
                                         all.begin() + (first + count) * out);
      EXPECT_EQ(linear(part), expected) << count << " rows from " << first;
    }
  }
}

// ---- a whole model ----

// The gradients of one training step of a small ViT, all in one.
std::vector<float> gradients(Backend& backend, DType compute) {
  const ViTConfig config{.image_h = 20,
                         .image_w = 20,
                         .patch_h = 4,
                         .patch_w = 4,
                         .width = 96,
                         .depth = 2,
                         .heads = 2,
                         .mlp_width = 200,
                         .classes = 10,
                         .drop_attn = 0.1f,
                         .drop_mlp = 0.1f};
  constexpr int64_t kBatch = 9;
  TrainingGraph graph(config, kBatch);
  ParamStore store(graph.g, backend);
  store.initialize(5);
  Program program = graph.compile(store, {.compute = compute});
  PhiloxStream random(4, 1, 0);
  std::vector<float> image(static_cast<size_t>(graph.image.shape().numel()));
  for (float& x : image) x = static_cast<float>(random.normal());
  const std::vector<int32_t> target(kBatch, 3);
  const std::vector<float> weight(kBatch, 1.f / kBatch);
  const RandomState rng{1, 2, 3, 0};
  program.upload(graph.image, image.data());
  program.upload(graph.target, target.data());
  program.upload(graph.weight, weight.data());
  program.upload(graph.rng, &rng);
  program.run();
  std::vector<float> all;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const std::vector<float> one = store.read(i, Arena::kGrad);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    square += y * y, apart += (x - y) * (x - y);
  }
  return std::sqrt(apart / square);
}

TEST_P(CpuBf16, TrainsAsPreciselyAsWidenedOperandsDo) {
  const auto widened = make_cpu_backend({.threads = 2, .max_isa = Isa::kAvx2});
  const std::vector<float> exact = gradients(*widened, kF32), native = gradients(*cpu(3), kBF16);
  const double bound = distance(gradients(*widened, kBF16), exact);
  EXPECT_GT(bound, 0);
  EXPECT_LT(distance(native, exact), 1.5 * bound);
  EXPECT_TRUE(gradients(*cpu(1), kBF16) == native) << "other bits with another number of threads";
}

// ---- units ----

// The plain loops say what AMX is documented to compute, subnormal numbers apart. That real
// processors give the very same bits is of no use to anybody, so it is only told.
TEST(CpuBf16Units, AmxComputesWhatThePlainLoopsDo) {
  if (!has(Isa::kAmx)) GTEST_SKIP() << cpu_features().brand << " has no amx: NOT TESTED HERE";
  const int64_t rows = 70, columns = 75, depth = 801;
  const Operand a(rows, depth, true, true, 3), b(columns, depth, true, true, 4);
  const auto left = packed(cpu::kSimdAvx2, a, cpu::TileSide::kLeft, rows, depth),
             right = packed(cpu::kSimdAvx2, b, cpu::TileSide::kRight, columns, depth);
  const auto product = [&](const cpu::TileUnit& unit) {
    std::vector<float> c(static_cast<size_t>(rows * columns));
    unit.multiply({left.data(), right.data(), c.data(), columns, rows, columns, depth, false});
    return c;
  };
  const std::vector<float> amx = product(cpu::kTilesAmx), plain = product(cpu::kTilesPortable);
  EXPECT_LT(distance(amx, plain), 1e-6);
  std::printf("amx and plain loops: %s\n", amx == plain ? "the same bits" : "other bits");
}

}  // namespace
}  // namespace vitrum::test
