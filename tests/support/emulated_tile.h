// Runs the GEMM of linear/tile.cuh without a card.
#pragma once
#include "tests/support/emulated_tensors.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/tile.cuh"

namespace vitrum::cuda::tile {

template <class Epilogue>
void run_tile(const std::vector<bf16>& x, int depth, const std::vector<bf16>& w, int clusters,
              const Epilogue& epilogue, bool gates = false) {
  const int rows = static_cast<int>(x.size()) / depth, columns = static_cast<int>(w.size()) / depth;
  const int high = (rows + kCluster * kRows - 1) / (kCluster * kRows);
  const Args<Epilogue> args{.x = tile_map(x, depth, kDepth, kRows),
                            .w = permuted_rows_map(w, depth, kDepth, kShare),
                            .columns = columns,
                            .steps = (depth + kDepth - 1) / kDepth,
                            .tiles = high * columns / kColumns,
                            .next = gates ? kShare : kColumns,
                            .apart = gates ? columns / 2 : kShare,
                            .epilogue = epilogue};
  static_assert(sizeof(Shared<Epilogue>) <= emulated::kSharedBytes);
  card.cluster = kCluster, card.blocks = clusters * kCluster;
  card.body = [&] { work(args, *reinterpret_cast<Shared<Epilogue>*>(card.shared())); };
  for (card.block = 0; card.block < card.blocks; card.block += kCluster) card.run(kThreads);
}

inline double product(const std::vector<bf16>& x, size_t row, const std::vector<bf16>& w,
                      size_t column, size_t depth) {
  double sum = 0;
  for (size_t k = 0; k < depth; ++k)
    sum += value(x[row * depth + k]) * value(w[column * depth + k]);
  return sum;
}

}  // namespace vitrum::cuda::tile
