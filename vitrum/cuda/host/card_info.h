// What a choice of kernels knows of the card. Host only, without CUDA's types: tests choose for
// cards that are not there.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vitrum::cuda {

struct CardInfo {
  int capability = 0;          // 90 is Hopper
  int processors = 0;          // SMs
  size_t shared_memory = 0;    // bytes a block may ask for at most
  bool has_tma_wgmma = false;  // Hopper, the library built for sm_90a, and a driver that knows TMA
};

constexpr CardInfo kH200{90, 132, 232'448, true}, kA100{80, 108, 166'912, false};

}  // namespace vitrum::cuda
