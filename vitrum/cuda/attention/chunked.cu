#include <cmath>

#include "vitrum/cuda/attention/chunked.cuh"

namespace vitrum::cuda {
namespace {

using namespace chunked;

constexpr int kPackThreads = 256;

template <int N, int kSize, bool kBiased>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    chunked_forward([[maybe_unused]] const __grid_constant__ ChunkedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N, kSize, kBiased>(args);
#endif
}

__global__ void __launch_bounds__(kPackThreads)
    pack_bias(PackedBias to, const float* bias, int tokens, float unit, int64_t count) {
  const int64_t at = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (at < count) pack_four(to, bias, tokens, unit, at);
}

template <int N, int kSize, bool kBiased>
KernelPtr launch(CudaBackend& cuda, const ChunkedArgs& args) {
  const auto kernel = chunked_forward<N, kSize, kBiased>;
  const AttentionArgs& attention = args.tile.attention;
  const AttentionShape& shape = attention.shape;
  constexpr size_t kBytes = sizeof(Memory<N, kSize>);
  allow_shared_memory(kernel, kBytes);
  const auto blocks = static_cast<unsigned>(args.tile.parts * shape.heads);
  return make_kernel([=, stream = cuda.stream()] {
    if constexpr (kBiased) {
      const int64_t count = args.bias.count(shape.heads);
      pack_bias<<<blocks_for(count, kPackThreads), kPackThreads, 0, stream>>>(
          args.bias, attention.bias, shape.tokens, std::sqrt(static_cast<float>(shape.size)),
          count);
    }
    kernel<<<blocks, kGroups * kGroup, kBytes, stream>>>(args);
  });
}

template <int N, int kSize = kHead>
KernelPtr lower(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  const auto chunks = static_cast<int>(divide_up(shape.tokens, N));
  ChunkedArgs all{.tile = {args, nullptr, images, persistent_parts(cuda, 1, shape.heads, images)},
                  .wide = {},
                  .rest = {},
                  .chunks_a_head = chunks,
                  .rounds_a_head = rounds_of_chunks(shape.tokens, chunks)};
  set_maps(all, shape, args.qkv, args.out, images, N);
  if (!args.bias) return launch<N, kSize, false>(cuda, all);
  all.bias.row_tiles = static_cast<int>(divide_up(shape.tokens, kTile)) * kTile / 16;
  all.bias.key_tiles = chunks * N / 8;
  all.bias.data = cuda.scratch_of<FourScores>(all.bias.count(shape.heads));
  return launch<N, kSize, true>(cuda, all);
}

}  // namespace

KernelPtr chunked_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                            int keys) {
  if (args.shape.size > kHead) return lower<136, 80>(cuda, args, images);
  return keys == 200 ? lower<200>(cuda, args, images) : lower<144>(cuda, args, images);
}

}  // namespace vitrum::cuda
