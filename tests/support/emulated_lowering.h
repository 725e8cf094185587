// What headers of kernels say beside the kernels: enough of it that they can be read without a
// card.
#pragma once
#include "tests/support/emulated_tensors.h"

using cudaStream_t = void*;
using cuuint64_t = uint64_t;
using cuuint32_t = uint32_t;
static inline const vitrum::emulated::Index blockDim{
    {[] { return vitrum::emulated::card.block_threads; }}};

namespace vitrum::cuda {

class Kernel;
using KernelPtr = std::unique_ptr<Kernel>;
struct CudaBackend {
  static int processors() { return 132; }
  template <class T>
  static T* scratch_of(int64_t) {
    return nullptr;
  }
};
struct DropSite {
  const RandomState* rng = nullptr;
  uint32_t site = 0, threshold = 65536;
  float scale = 1;
};
static inline uint32_t keep_bits(const DropSite& d, uint64_t counter) {
  const PhiloxBlock block = draw_block(*d.rng, d.site, counter);
  uint32_t bits = 0;
  for (size_t half = 0; half < 8; ++half)
    bits |= ((block[half / 2] >> (16 * (half % 2)) & 0xffffu) < d.threshold ? 1u : 0u) << half;
  return bits;
}
struct AddToColumns {
  float* to;
};
static inline void launch_finish(const float*, int64_t, int64_t, const AddToColumns&,
                                 cudaStream_t) {}
static inline int64_t reversed_index(int64_t i, int64_t count) { return count - 1 - i; }
static inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(offset_of(p)); }
static inline bf16 __float2bfloat16_rn(float x) { return {to_bf16(x)}; }
static inline Eight unpack8(const uint4& raw) {
  Eight x;
  for (int i = 0; i < 8; ++i) {
    uint16_t bits;
    std::memcpy(&bits, reinterpret_cast<const std::byte*>(&raw) + 2 * i, 2);
    x.v[i] = from_bf16(bits);
  }
  return x;
}
// Panels of 64 columns: how far apart, above the address.
static inline uint64_t make_panel_descriptor(const std::byte* matrix, int apart) {
  return make_descriptor(matrix) | static_cast<uint64_t>(apart) << 32;
}
static inline void wgmma_ss_at_bt(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  const uint64_t apart = b >> 36;  // as addresses are: 16 bytes
  add_products(
      d, add, warp_row(), [=](int row, int k) { return element(a, k, row); },
      [=](int k, int column) {
        return element((b & 0xffff) + apart * static_cast<uint64_t>(column / 64), k, column % 64);
      });
}
// Distances in bytes but for the first dimension, as the driver wants them.
template <size_t kRank>
CUtensorMap make_tensor_map(const void* data, const uint64_t (&sizes)[kRank],
                            const uint64_t (&apart)[kRank - 1], const uint32_t (&box)[kRank]) {
  CUtensorMap map{static_cast<const uint16_t*>(data), {}, {1}, {}};
  for (size_t i = 0; i < kRank; ++i) {
    map.sizes.push_back(static_cast<int64_t>(sizes[i])), map.box.push_back(box[i]);
    if (i > 0) map.strides.push_back(static_cast<int64_t>(apart[i - 1] / 2));
  }
  return map;
}
template <size_t kRank>
CUtensorMap make_rows_map(const void* data, const uint64_t (&sizes)[kRank],
                          const uint64_t (&apart)[kRank - 1], const uint32_t (&box)[kRank]) {
  CUtensorMap map = make_tensor_map(data, sizes, apart, box);
  map.swizzle = 2 * size_t{box[0]};
  return map;
}

}  // namespace vitrum::cuda
