#include "vitrum/cuda/attention/smem_bwd.cuh"

namespace vitrum::cuda {
namespace {

using namespace smem;

template <int kSize>
__global__ void __launch_bounds__(kHeadThreads, 1)
    smem_backward([[maybe_unused]] const __grid_constant__ BackwardArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward<kSize>(args);
#endif
}

template <int kSize>
KernelPtr lower(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  const AttentionShape& shape = args.shape;
  const int rows = static_cast<int>(divide_up(shape.tokens, 16) * 16);
  const size_t bytes = Memory<kSize>::bytes(rows);
  allow_shared_memory(smem_backward<kSize>, bytes);
  const PersistentArgs tile = head_parts(cuda, args, images);
  const auto boxes = [&](const void* data, int64_t columns, int box = kBox) {
    return rows_of_heads(data, columns, shape.tokens, images, box, kSize);
  };
  const BackwardArgs all{.tile = tile,
                         .qkv = boxes(args.qkv, shape.qkv_stride()),
                         .dy = boxes(args.dy, shape.y_stride()),
                         .out = boxes(args.out, shape.qkv_stride()),
                         .whole = boxes(args.qkv, shape.qkv_stride(), rows),
                         .rows = rows};
  return make_kernel([=, stream = cuda.stream()] {
    smem_backward<kSize><<<head_blocks(tile), kHeadThreads, bytes, stream>>>(all);
    finish_head_sums(tile, stream);
  });
}

}  // namespace

KernelPtr smem_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  return args.shape.size == 32 ? lower<32>(cuda, args, images) : lower<64>(cuda, args, images);
}

}  // namespace vitrum::cuda
