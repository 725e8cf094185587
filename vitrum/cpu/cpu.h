// The fast CPU backend: vectorised loops and matrix products, chosen by instruction set at run
// time.
#pragma once
#include <memory>
#include <string>

#include "vitrum/runtime/backend.h"

namespace vitrum {

enum class Isa { kAuto, kAvx2, kAvx512 };

struct CpuOptions {
  int threads = 0;           // 0: every core this process may use
  Isa max_isa = Isa::kAuto;  // the environment variable VITRUM_ISA (avx2, avx512) limits it too
};

struct CpuFeatures {
  bool avx2 = false;    // with FMA, F16C and BMI2
  bool avx512 = false;  // F, BW, DQ and VL
  bool avx512_bf16 = false, avx512_vnni = false, amx_bf16 = false;
  std::string brand;
};
CpuFeatures cpu_features();
// One line for people: brand, instruction set in use, and whether bf16 is native or emulated.
std::string describe(const CpuFeatures& features);

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options = {});

}  // namespace vitrum
