#include "vitrum/cuda/attention/chunked.cuh"

namespace vitrum::cuda {
namespace {

using namespace chunked;

template <int N>
__global__ void __launch_bounds__(kGroups* kGroup, 1)
    chunked_forward([[maybe_unused]] const __grid_constant__ ChunkedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<N>(args);
#endif
}

template <int N>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  allow_shared_memory(chunked_forward<N>, sizeof(Memory<N>));
  const int64_t parts = persistent_parts(cuda, 1, shape.heads, images);
  const auto rows = [&](const void* data, int64_t columns, int box) {
    return rows_of_heads(data, columns, shape.tokens, images, box);
  };
  const auto chunks = static_cast<int>(divide_up(shape.tokens, N));
  const ChunkedArgs all{.tile = {args, nullptr, images, parts},
                        .chunks = rows(args.qkv, shape.qkv_stride(), N),
                        .q = rows(args.qkv, shape.qkv_stride(), 16),
                        .y = rows(args.out, shape.y_stride(), 16),
                        .chunks_a_head = chunks,
                        .rounds_a_head = rounds_of_chunks(shape.tokens, chunks)};
  return launch_kernel(cuda, chunked_forward<N>, static_cast<unsigned>(parts * shape.heads),
                       kGroups * kGroup, sizeof(Memory<N>), all);
}

}  // namespace

KernelPtr chunked_attention(CudaBackend& cuda, const AttentionArgs& args, int64_t images,
                            int keys) {
  return keys == 200 ? launch<200>(cuda, args, images) : launch<144>(cuda, args, images);
}

}  // namespace vitrum::cuda
