// Layers of e4m3 of few rows: linear/small_m.cuh, whose weights are half as many bytes.
#include "vitrum/cuda/linear/e4m3_launch.cuh"

namespace vitrum::cuda::e4m3 {
namespace {

template <class Epilogue>
__global__ void __launch_bounds__(small_m::kThreads, 1)
    few_rows([[maybe_unused]] const __grid_constant__ small_m::Args<Epilogue> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  small_m::work(g, *reinterpret_cast<small_m::Shared<Epilogue>*>(memory));
#endif
}

template <class End>
KernelPtr launch(CudaBackend& cuda, const Product& of, int splits, const End& end) {
  using Epilogue = FewEpilogue<End>;
  const TensorView x = as_pairs(of.x), w = as_pairs(of.w);
  const auto columns = static_cast<int>(w.shape[0]), rows = static_cast<int>(x.shape[0]);
  const small_m::Args<Epilogue> args{
      .x = tile_map(x, small_m::kDepth, small_m::kRows),
      .w = permuted_rows_map(w, small_m::kDepth, Epilogue::kColumns),
      .steps = static_cast<int>(divide_up(w.shape[1], small_m::kDepth)),
      .splits = splits,
      .high = static_cast<int>(divide_up(rows, small_m::kRows)),
      .epilogue = {
          .of = {.scale = of.scale, .bias = of.bias, .rows = rows, .first = 0, .columns = columns},
          .end = end}};
  const int blocks = args.high * (columns / Epilogue::kColumns) * splits;
  constexpr size_t kShared = sizeof(small_m::Shared<Epilogue>);
  allow_shared_memory(few_rows<Epilogue>, kShared);
  return make_kernel([=, stream = cuda.stream()] {
    launch_cluster(few_rows<Epilogue>, blocks, splits, small_m::kThreads, kShared, stream,
                   /*early=*/true, args);
  });
}

}  // namespace

KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits, const ToRows& end) {
  return launch(cuda, of, splits, end);
}
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits, const ToSum& end) {
  return launch(cuda, of, splits, end);
}
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kGelu>& end) {
  return launch(cuda, of, splits, end);
}
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kGeluTanh>& end) {
  return launch(cuda, of, splits, end);
}
KernelPtr launch_few(CudaBackend& cuda, const Product& of, int splits,
                     const ActToE4M3<Act::kQuickGelu>& end) {
  return launch(cuda, of, splits, end);
}

}  // namespace vitrum::cuda::e4m3
