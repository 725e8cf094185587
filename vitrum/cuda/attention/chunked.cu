#include "vitrum/cuda/attention/chunked.cuh"

namespace vitrum::cuda {
namespace {

using namespace chunked;

constexpr int kPackThreads = 256;

template <int N, bool kBiased>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    chunked_forward([[maybe_unused]] const __grid_constant__ ChunkedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N, kBiased>(args);
#endif
}

__global__ void __launch_bounds__(kPackThreads)
    pack_bias(PackedBias to, const float* bias, int tokens, float unit, int64_t count) {
  const int64_t at = int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (at < count) pack_four(to, bias, tokens, unit, at);
}

template <int N, bool kBiased>
KernelPtr launch(CudaBackend& cuda, const ChunkedArgs& args) {
  const auto kernel = chunked_forward<N, kBiased>;
  const AttentionArgs& attention = args.tile.attention;
  const AttentionShape& shape = attention.shape;
  allow_shared_memory(kernel, sizeof(Memory<N>));
  const auto blocks = static_cast<unsigned>(args.tile.parts * shape.heads);
  return make_kernel([=, stream = cuda.stream()] {
    if constexpr (kBiased) {
      const int64_t count = args.bias.count(shape.heads);
      pack_bias<<<blocks_for(count, kPackThreads), kPackThreads, 0, stream>>>(
          args.bias, attention.bias, shape.tokens, 1 / kScale, count);
    }
    kernel<<<blocks, kGroups * kGroup, sizeof(Memory<N>), stream>>>(args);
  });
}

template <int N>
KernelPtr lower(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  const int64_t parts = persistent_parts(cuda, 1, shape.heads, images);
  const auto rows = [&](const void* data, int64_t columns, int box) {
    return rows_of_heads(data, columns, shape.tokens, images, box);
  };
  const auto chunks = static_cast<int>(divide_up(shape.tokens, N));
  ChunkedArgs all{.tile = {args, nullptr, images, parts},
                  .chunks = rows(args.qkv, shape.qkv_stride(), N),
                  .q = rows(args.qkv, shape.qkv_stride(), 16),
                  .y = rows(args.out, shape.y_stride(), 16),
                  .chunks_a_head = chunks,
                  .rounds_a_head = rounds_of_chunks(shape.tokens, chunks)};
  if (!args.bias) return launch<N, false>(cuda, all);
  all.bias.row_tiles = static_cast<int>(divide_up(shape.tokens, kTile)) * kTile / 16;
  all.bias.key_tiles = chunks * N / 8;
  all.bias.data = cuda.scratch_of<FourScores>(all.bias.count(shape.heads));
  return launch<N, true>(cuda, all);
}

}  // namespace

KernelPtr chunked_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                            int keys) {
  return keys == 200 ? lower<200>(cuda, args, images) : lower<144>(cuda, args, images);
}

}  // namespace vitrum::cuda
