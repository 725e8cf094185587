#include "vitrum/cuda/attention/chunked_bwd.cuh"

namespace vitrum::cuda {
namespace {

using namespace chunked_bwd;

__global__ void __launch_bounds__(kHeadThreads, 1)
    chunked_backward([[maybe_unused]] const __grid_constant__ ChunkedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward(args);
#endif
}

}  // namespace

KernelPtr chunked_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  const int rows = static_cast<int>(divide_up(shape.tokens, 16) * 16);
  const size_t bytes = Memory::bytes(rows);
  allow_shared_memory(chunked_backward, bytes);
  const PersistentArgs tile = head_parts(cuda, args, images);
  const ChunkedArgs all{
      .tile = tile,
      .qkv = rows_of_heads(args.qkv, shape.qkv_stride(), shape.tokens, images, kBox),
      .dy = rows_of_heads(args.dy, shape.y_stride(), shape.tokens, images, kBox),
      .rows = rows};
  return make_kernel([=, stream = cuda.stream()] {
    chunked_backward<<<head_blocks(tile), kHeadThreads, bytes, stream>>>(all);
    finish_head_sums(tile, stream);
  });
}

}  // namespace vitrum::cuda
