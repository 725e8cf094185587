// The fast CPU backend: vectorised loops and matrix products, chosen by instruction set at run
// time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/runtime/backend.h"

namespace vitrum {

// Each includes those before it. kAvxVnni is AVX2 with products of bytes of 256 bits. kTiles
// multiplies bf16 as kAmx does, but in plain loops: for tests on processors that have no such
// instructions.
enum class Isa { kAuto, kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmx, kTiles };

struct CpuOptions {
  int threads = 0;           // 0: every core this process may use
  Isa max_isa = Isa::kAuto;  // the environment variable VITRUM_ISA limits it too
};

struct CpuFeatures {
  bool avx2 = false;    // with FMA, F16C and BMI2
  bool avx512 = false;  // F, BW, DQ and VL
  bool avx512_bf16 = false, avx512_vnni = false;
  bool avx_vnni = false;                    // of 256 bits
  bool amx_bf16 = false, amx_int8 = false;  // and this process may use them
  std::string brand;
};
CpuFeatures cpu_features();
// How products of bf16 are computed here: amx, avx512_bf16, or emulated, which is in f32.
std::string bf16_products();
// And those of eight bits: amx, avx512_vnni, avx_vnni or avx2.
std::string int8_products();
std::string vector_isa();  // avx2 or avx512
// One line for people: brand, instruction set in use, and how bf16 is multiplied.
std::string describe(const CpuFeatures& features);

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options = {});

// For each thread of a CPU backend another backend that computes the same bits on the thread that
// calls it; none where it has one thread, or is no CPU backend.
std::vector<std::unique_ptr<Backend>> make_cpu_lanes(Backend& backend);

}  // namespace vitrum
