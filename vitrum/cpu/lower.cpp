#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

std::unique_ptr<Kernel> CpuBackend::lower(const Op& op, const Operands& io) {
  return std::visit([&](const auto& o) { return cpu::lower(*this, o, io); }, op);
}

}  // namespace vitrum::cpu
