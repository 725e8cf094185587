#include "vitrum/cpu/backend.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "vitrum/core/ceil_div.h"
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

// Linux keeps the tile registers of those processes only that asked for them.
bool may_use_tiles() {
#ifdef SYS_arch_prctl
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

Isa isa_from_environment() {
  const char* text = std::getenv("VITRUM_ISA");
  if (!text || !*text) return Isa::kAuto;
  constexpr std::pair<const char*, Isa> kNames[] = {
      {"avx2", Isa::kAvx2},     {"avx_vnni", Isa::kAvxVnni},
      {"avx512", Isa::kAvx512}, {"avx512_bf16", Isa::kAvx512Bf16},
      {"amx", Isa::kAmx},       {"tiles", Isa::kTiles}};
  for (const auto& [name, isa] : kNames)
    if (std::strcmp(text, name) == 0) return isa;
  fail_usage("VITRUM_ISA is \"{}\"; it may be avx2, avx_vnni, avx512, avx512_bf16, amx or tiles",
             text);
}

struct Choice {
  const cpu::SimdKernels* simd;
  const cpu::TileUnit* tiles;
  const cpu::ByteUnit* bytes;
};

const cpu::SimdKernels* choose_simd(const CpuFeatures& cpu, Isa most) {
  if (!cpu.avx512 || most == Isa::kAvx2 || most == Isa::kAvxVnni) return &cpu::kSimdAvx2;
  const bool rounds = most == Isa::kAuto || most == Isa::kAvx512Bf16 || most == Isa::kAmx;
  return cpu.avx512_bf16 && rounds ? &cpu::kSimdAvx512Bf16 : &cpu::kSimdAvx512;
}

const cpu::TileUnit* choose_tiles(const CpuFeatures& cpu, Isa most) {
  if (most == Isa::kTiles) return &cpu::kTilesPortable;
  const auto allowed = [&](Isa isa) { return most == Isa::kAuto || most >= isa; };
  if (cpu.amx_bf16 && allowed(Isa::kAmx)) return &cpu::kTilesAmx;
  // Intel's processors take two cycles for each of these, so that widened operands and plain
  // multiply-adds win by half (measured on Sapphire Rapids); AMD's take one.
  const bool pays = __builtin_cpu_is("amd") || most == Isa::kAvx512Bf16;
  if (cpu.avx512_bf16 && pays && allowed(Isa::kAvx512Bf16)) return &cpu::kTilesAvx512Bf16;
  return nullptr;
}

// All give the same sums, so this is about speed alone.
const cpu::ByteUnit* choose_bytes(const CpuFeatures& cpu, Isa most) {
  if (most == Isa::kTiles) return &cpu::kBytesPortable;
  if (most == Isa::kAvx2) return &cpu::kBytesAvx2;
  if (cpu.amx_int8 && (most == Isa::kAuto || most >= Isa::kAmx)) return &cpu::kBytesAmx;
  if (cpu.avx512_vnni && most != Isa::kAvxVnni) return &cpu::kBytesAvx512Vnni;
  return cpu.avx_vnni ? &cpu::kBytesAvxVnni : &cpu::kBytesAvx2;
}

Choice choose(Isa wanted) {
  const CpuFeatures cpu = cpu_features();
  if (!cpu.avx2)
    fail(
        "this processor ({}) has no AVX2 and FMA, which the CPU backend needs; use the reference "
        "backend",
        cpu.brand);
  const Isa limit = isa_from_environment();
  const Isa most = wanted == Isa::kAuto || limit == Isa::kAuto ? std::max(wanted, limit)
                                                               : std::min(wanted, limit);
  return {choose_simd(cpu, most), choose_tiles(cpu, most), choose_bytes(cpu, most)};
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
  if (f.avx2 && __get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    constexpr uint64_t kTileState = 3u << 17;
    constexpr unsigned kTiles = 1u << 24, kOfBf16 = 1u << 22, kOfInt8 = 1u << 25;
    const bool tiles = f.avx512 && d & kTiles && os_keeps(kTileState) && may_use_tiles();
    f.amx_bf16 = tiles && d & kOfBf16, f.amx_int8 = tiles && d & kOfInt8;
    f.avx512_vnni = f.avx512 && c >> 11 & 1;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
      f.avx512_bf16 = f.avx512 && a >> 5 & 1, f.avx_vnni = a >> 4 & 1;
  }
  return f;
}

std::string bf16_products() {
  const cpu::TileUnit* tiles = choose(Isa::kAuto).tiles;
  return tiles ? tiles->name : "emulated";
}

std::string int8_products() { return choose(Isa::kAuto).bytes->name; }

std::string vector_isa() { return choose(Isa::kAuto).simd == &cpu::kSimdAvx2 ? "avx2" : "avx512"; }

std::string describe(const CpuFeatures& f) {
  const cpu::TileUnit* tiles = choose(Isa::kAuto).tiles;
  return fmt::format("{}; {}; bf16 {}", f.brand, vector_isa() == "avx2" ? "AVX2" : "AVX-512",
                     tiles ? fmt::format("by {}", tiles->name) : "emulated in f32");
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  const auto [simd, tiles, bytes] = choose(options.max_isa);
  return std::make_unique<cpu::CpuBackend>(*simd, tiles, *bytes, threads);
}

std::vector<std::unique_ptr<Backend>> make_cpu_lanes(Backend& backend) {
  std::vector<std::unique_ptr<Backend>> lanes;
  auto* const cpu = dynamic_cast<cpu::CpuBackend*>(&backend);
  const int threads = cpu ? cpu->pool().threads() : 1;
  for (int i = 0; threads > 1 && i < threads; ++i)
    lanes.push_back(std::make_unique<cpu::CpuBackend>(cpu->simd(), cpu->tiles(), cpu->bytes(), 1));
  return lanes;
}

}  // namespace vitrum

namespace vitrum::cpu {
namespace {

constexpr size_t kAlign = 64;
size_t aligned(size_t bytes) { return round_up(bytes, kAlign); }

}  // namespace

void Scratch::reserve_per_thread(size_t bytes) {
  if (aligned(bytes) <= stride_) return;
  stride_ = aligned(bytes);
  per_thread_ = allocate_host(stride_ * threads_);
}

void Scratch::reserve_shared(size_t bytes) {
  if (bytes > shared_.size()) shared_ = allocate_host(bytes);
}

CpuBackend::CpuBackend(const SimdKernels& simd, const TileUnit* tiles, const ByteUnit& bytes,
                       int threads)
    : simd_(&simd), tiles_(tiles), bytes_(&bytes), pool_(threads), scratch_(pool_.threads()) {}

std::string CpuBackend::name() const {
  return fmt::format("cpu ({}{}, {} threads)", simd_ == &kSimdAvx2 ? "avx2" : "avx512",
                     tiles_ ? fmt::format(", bf16 by {}", tiles_->name) : "", pool_.threads());
}

// Some 0.3 s in f32: what turning or packing weights and waiting for other threads take is little
// beside it.
int64_t CpuBackend::enough_work(DType compute) const {
  constexpr int64_t kOfThread = int64_t{32} << 30;
  const int faster = compute == DType::kI8 ? 4 : tiles_ && compute == DType::kBF16 ? 2 : 1;
  return kOfThread * pool_.threads() * faster;
}

void CpuBackend::upload(TensorView to, const void* from) { std::memcpy(to.data, from, to.bytes()); }
void CpuBackend::download(void* to, TensorView from) { std::memcpy(to, from.data, from.bytes()); }

Chunks chunk_rows(int64_t rows, int64_t row_elements, int64_t most, int64_t multiple) {
  constexpr int64_t kLeast = 16 * 1024;
  const int64_t size =
      std::max(ceil_div(kLeast, std::max<int64_t>(row_elements, 1)), ceil_div(rows, most));
  return {rows, round_up(size, multiple)};
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
