#include "vitrum/cpu/backend.h"

#include <cpuid.h>

#include <cstdlib>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

std::string brand_string() {
  unsigned words[12] = {};
  unsigned* w = words;
  for (unsigned leaf = 0x80000002u; leaf <= 0x80000004u; ++leaf, w += 4)
    if (!__get_cpuid(leaf, &w[0], &w[1], &w[2], &w[3])) return "unknown";
  char text[sizeof words + 1] = {};
  std::memcpy(text, words, sizeof words);
  return text;
}

// Whether the operating system keeps the state components of `bits` (Intel SDM, XCR0).
bool os_keeps(uint64_t bits) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1u << 27;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsave)) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t{high} << 32 | low) & bits) == bits;
}

Isa isa_from_environment() {
  const char* text = std::getenv("VITRUM_ISA");
  if (!text || !*text) return Isa::kAuto;
  if (std::strcmp(text, "avx2") == 0) return Isa::kAvx2;
  if (std::strcmp(text, "avx512") == 0) return Isa::kAvx512;
  fail_usage("VITRUM_ISA is \"{}\"; it may be avx2 or avx512", text);
}

Isa choose_isa(Isa wanted) {
  const CpuFeatures cpu = cpu_features();
  if (!cpu.avx2)
    fail(
        "this processor ({}) has no AVX2 and FMA, which the CPU backend needs; use the reference "
        "backend",
        cpu.brand);
  const bool limited = wanted == Isa::kAvx2 || isa_from_environment() == Isa::kAvx2;
  return cpu.avx512 && !limited ? Isa::kAvx512 : Isa::kAvx2;
}

}  // namespace

CpuFeatures cpu_features() {
  CpuFeatures f;
  __builtin_cpu_init();
  f.brand = brand_string();
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (f.avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    constexpr uint64_t kTileState = 3u << 17;
    f.avx512_vnni = c >> 11 & 1;
    f.amx_bf16 = (d >> 22 & 1) && os_keeps(kTileState);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.avx512_bf16 = a >> 5 & 1;
  }
  return f;
}

std::string describe(const CpuFeatures& f) {
  const bool wide = choose_isa(Isa::kAuto) == Isa::kAvx512;
  return fmt::format("{}; {}; bf16 emulated in f32", f.brand, wide ? "AVX-512" : "AVX2");
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  return std::make_unique<cpu::CpuBackend>(choose_isa(options.max_isa), threads);
}

}  // namespace vitrum

namespace vitrum::cpu {
namespace {

constexpr size_t kAlign = 64;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

void Scratch::reserve_per_thread(size_t bytes) {
  if (aligned(bytes) <= stride_) return;
  stride_ = aligned(bytes);
  per_thread_ = allocate_host(stride_ * threads_);
}

void Scratch::reserve_shared(size_t bytes) {
  if (bytes > shared_.size()) shared_ = allocate_host(bytes);
}

CpuBackend::CpuBackend(Isa isa, int threads)
    : isa_(isa),
      simd_(isa == Isa::kAvx512 ? &kSimdAvx512 : &kSimdAvx2),
      pool_(threads),
      scratch_(pool_.threads()) {}

std::string CpuBackend::name() const {
  return fmt::format("cpu ({}, {} threads)", isa_ == Isa::kAvx512 ? "avx512" : "avx2",
                     pool_.threads());
}

void CpuBackend::upload(TensorView to, const void* from) { std::memcpy(to.data, from, to.bytes()); }
void CpuBackend::download(void* to, TensorView from) { std::memcpy(to, from.data, from.bytes()); }

Chunks chunk_rows(int64_t rows, int64_t row_elements, int64_t most, int64_t multiple) {
  constexpr int64_t kLeast = 16 * 1024;
  const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t size =
      std::max(divide_up(kLeast, std::max<int64_t>(row_elements, 1)), divide_up(rows, most));
  return {rows, divide_up(size, multiple) * multiple};
}

static void refuse(DType dtype) {
  fail("the CPU backend computes in f32 and bf16, not {}; use the reference backend",
       name_of(dtype));
}

Array floats(const TensorView& view) {
  if (view && view.dtype != DType::kF32 && view.dtype != DType::kBF16) refuse(view.dtype);
  return {view.data, view.dtype};
}

float* f32_only(const TensorView& view) {
  if (view && view.dtype != DType::kF32) refuse(view.dtype);
  return static_cast<float*>(view.data);
}

Array pixels(const TensorView& view) {
  return view.dtype == DType::kU8 ? Array{view.data, view.dtype} : floats(view);
}

}  // namespace vitrum::cpu
