// Layers of e4m3 of many rows: tiles of linear/tile.cuh.
#include "vitrum/cuda/linear/e4m3_launch.cuh"
#include "vitrum/cuda/linear/tile_launch.cuh"

namespace vitrum::cuda::e4m3 {
namespace {

// Wider layers than a tile's tables hold are several products.
template <class End>
KernelPtr launch(CudaBackend& cuda, const Product& of, const End& end) {
  std::vector<std::shared_ptr<Kernel>> parts;
  const TensorView w = as_pairs(of.w);
  const int64_t all = w.shape[0], depth = w.shape[1];
  for (int64_t first = 0; first < all; first += kMaxColumns) {
    const int64_t columns = std::min<int64_t>(kMaxColumns, all - first);
    const TensorView part{
        static_cast<std::byte*>(w.data) + first * depth * 2, {columns, depth}, DType::kBF16};
    parts.push_back(
        tile::launch(cuda, as_pairs(of.x), part,
                     TileEpilogue<End>{.of = {.scale = of.scale,
                                              .bias = of.bias,
                                              .rows = static_cast<int>(of.x.shape.rows()),
                                              .first = static_cast<int>(first),
                                              .columns = static_cast<int>(columns)},
                                       .end = end}));
  }
  return make_kernel([parts] {
    for (const auto& part : parts) part->launch();
  });
}

}  // namespace

KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ToRows& end) {
  return launch(cuda, of, end);
}
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ToSum& end) {
  return launch(cuda, of, end);
}
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ActToE4M3<Act::kGelu>& end) {
  return launch(cuda, of, end);
}
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of, const ActToE4M3<Act::kGeluTanh>& end) {
  return launch(cuda, of, end);
}
KernelPtr launch_tiles(CudaBackend& cuda, const Product& of,
                       const ActToE4M3<Act::kQuickGelu>& end) {
  return launch(cuda, of, end);
}

}  // namespace vitrum::cuda::e4m3
