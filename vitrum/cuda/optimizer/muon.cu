// Muon's direction: momentum, then five Newton-Schulz steps as batched products over all matrices
// of a size. What is tall is turned on the way in, so that Gram matrices have the smaller side.
// Sizes that differ in the larger side alone may be filled up to the largest with zeros, which stay
// zeros and add nothing to a Gram matrix: a ResNet has three of a side, and a few matrices of each.
#include <map>
#include <vector>

#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 8192;  // elements a block of momentum() works on
constexpr int kTile = 32, kTileRows = 8;

struct Chunk {
  int64_t first = 0;
  int32_t count = 0;
};

// One matrix: where it is in the arenas, and which chunks of it there are.
struct Place {
  int64_t offset = 0;
  int32_t first_chunk = 0, chunks = 0, large = 0;  // its own larger side
  float scale = 1;
  bool tall = false;
};

struct MomentumArgs {
  float *gradient, *momentum;
  const float* clip;
  float beta, rest;
  bool nesterov;
};

// The gradient becomes the (Nesterov) momentum; one sum of squares a chunk.
__global__ void __launch_bounds__(kThreads)
    momentum(MomentumArgs g, const Chunk* chunks, double* squares) {
  const Chunk chunk = chunks[blockIdx.x];
  const float clip = g.clip ? g.clip[1] : 1.0f;
  double sum = 0;
  for (int64_t i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += kThreads) {
    const float d = g.rest * (g.gradient[i] * clip);
    const float m = fmaf(g.beta, g.momentum[i], d), u = g.nesterov ? fmaf(g.beta, m, d) : m;
    g.momentum[i] = m, g.gradient[i] = u;
    sum += static_cast<double>(u) * static_cast<double>(u);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One matrix a block: 1 / max(norm, 1e-7).
__global__ void __launch_bounds__(kThreads)
    inverse_norms(const double* squares, const Place* places, float* inverse) {
  const Place place = places[blockIdx.x];
  double sum = 0;
  for (int i = threadIdx.x; i < place.chunks; i += kThreads) sum += squares[place.first_chunk + i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) inverse[blockIdx.x] = static_cast<float>(1.0 / fmax(sqrt(sum), 1e-7));
}

// All matrices of a size, between their places in the gradients and (small, large) blocks of T one
// after the other. blockIdx.z: the matrix; x, y: a tile of its (small, large) form.
template <class T, bool kIn>
__global__ void move(float* gradient, T* x, const Place* places, const float* inverse, int small,
                     int large) {
  __shared__ float tile[kTile][kTile + 1];
  const Place place = places[blockIdx.z];
  float* g = gradient + place.offset;
  x += static_cast<int64_t>(blockIdx.z) * small * large;
  const float factor = kIn ? inverse[blockIdx.z] : place.scale;
  const int row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  // Element (r, c) of the tile is x[row + r][column + c]; in a tall matrix g[column + c][row + r].
  const auto at_x = [&](int r, int c) {
    return static_cast<int64_t>(row + r) * large + column + c;
  };
  const auto at_g = [&](int r, int c) {
    return place.tall ? static_cast<int64_t>(column + c) * small + row + r
                      : static_cast<int64_t>(row + r) * place.large + column + c;
  };
  const auto inside = [&](int r, int c) { return row + r < small && column + c < large; };
  const auto filled = [&](int r, int c) { return row + r < small && column + c < place.large; };
  // Reading and writing both go along rows of what is in memory.
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const bool turn = kIn && place.tall;
    const int r = turn ? threadIdx.x : i, c = turn ? i : threadIdx.x;
    if (filled(r, c))
      tile[r][c] = factor * (kIn ? g[at_g(r, c)] : to_float(x[at_x(r, c)]));
    else if (kIn)
      tile[r][c] = 0;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const bool turn = !kIn && place.tall;
    const int r = turn ? threadIdx.x : i, c = turn ? i : threadIdx.x;
    if constexpr (kIn) {
      if (inside(r, c)) x[at_x(r, c)] = from_float<T>(tile[r][c]);
    } else {
      if (filled(r, c)) g[at_g(r, c)] = tile[r][c];
    }
  }
}

int64_t aligned(int64_t bytes) { return divide_up(bytes, 256) * 256; }

// The matrices of one size, or filled up to it.
struct Group {
  int64_t small, large, count;
  size_t first;             // place of its first matrix
  int64_t x = 0, gram = 0;  // in bytes of the scratch
  Gemm to_gram, to_x;
};
using BySize = std::map<std::pair<int64_t, int64_t>, std::vector<const MatrixSegment*>>;

// Two products with less than this to do take no longer than their launches.
constexpr double kFewOperations = 4e9;

// Puts sizes together, the smaller side first, where filling up costs less than it saves.
void fill_up(BySize& by_size) {
  for (auto size = by_size.begin(); size != by_size.end();) {
    const auto next = std::next(size);
    if (next == by_size.end()) return;
    const auto [small, large] = size->first;
    const auto more =
        static_cast<double>(next->first.second - large) * static_cast<double>(size->second.size());
    if (next->first.first == small &&
        4 * static_cast<double>(small * small) * more < kFewOperations) {
      next->second.insert(next->second.begin(), size->second.begin(), size->second.end());
      by_size.erase(size);
    }
    size = next;
  }
}

// All groups of one smaller side share the product of Gram matrices.
struct Square {
  int64_t small, count = 0, gram = 0;
  Gemm product;
};

class MuonKernel final : public Kernel {
 public:
  MuonKernel(CudaBackend& cuda, const Orthogonalize& op, const Operands& io)
      : stream_(cuda.stream()) {
    const auto& [momentum, nesterov, bf16, matrices] = op;
    bf16_ = bf16;
    args_ = {io.out[Orthogonalize::kGradients].f32(),    io.out[Orthogonalize::kMomentum].f32(),
             operand(io.in, Orthogonalize::kClip).f32(), static_cast<float>(momentum),
             static_cast<float>(1 - momentum),           nesterov};
    place(cuda, matrices);
    lay_out(cuda);
    prepare(cuda);
  }

  void launch() override {
    const auto* chunks = reinterpret_cast<const Chunk*>(chunk_table_.data());
    const auto* places = reinterpret_cast<const Place*>(place_table_.data());
    auto* squares = reinterpret_cast<double*>(scratch_ + squares_at_);
    auto* inverse = reinterpret_cast<float*>(scratch_ + inverse_at_);
    momentum<<<chunks_, kThreads, 0, stream_>>>(args_, chunks, squares);
    inverse_norms<<<places_, kThreads, 0, stream_>>>(squares, places, inverse);
    with_type(type(), [&](auto t) { move_all<decltype(t), true>(places, inverse); });
    for (int step = 0; step < kSteps; ++step) iterate(step);
    with_type(type(), [&](auto t) { move_all<decltype(t), false>(places, inverse); });
  }

 private:
  static constexpr int kSteps = 5;
  static constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;  // see the reference

  DType type() const { return bf16_ ? DType::kBF16 : DType::kF32; }
  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(type()));
  }

  // Groups by size. Where processes share the work, how many matrices this one has must not decide
  // what they are filled up to.
  void place(CudaBackend& cuda, const std::vector<MatrixSegment>& matrices) {
    BySize by_size;
    for (const MatrixSegment& m : matrices) by_size[std::minmax(m.rows, m.columns)].push_back(&m);
    if (cuda.choices().empty()) fill_up(by_size);
    std::vector<Chunk> chunks;
    std::vector<Place> places;
    for (const auto& [size, all] : by_size) {
      groups_.push_back({size.first, size.second, static_cast<int64_t>(all.size()), places.size()});
      for (const MatrixSegment* m : all) {
        const auto first = static_cast<int32_t>(chunks.size());
        const int64_t elements = m->rows * m->columns;
        for (int64_t at = 0; at < elements; at += kChunk)
          chunks.push_back({m->offset + at, static_cast<int32_t>(std::min(kChunk, elements - at))});
        places.push_back({m->offset, first, static_cast<int32_t>(chunks.size()) - first,
                          static_cast<int32_t>(std::max(m->rows, m->columns)), m->scale,
                          m->rows > m->columns});
      }
    }
    chunks_ = static_cast<unsigned>(chunks.size()), places_ = static_cast<unsigned>(places.size());
    chunk_table_ = to_card(cuda, chunks), place_table_ = to_card(cuda, places);
  }

  // Scratch: two forms of x, Gram matrices and their polynomial, sums.
  void lay_out(CudaBackend& cuda) {
    for (Group& g : groups_) {
      g.x = whole_, whole_ += aligned(bytes_of(g.count * g.small * g.large));
      if (squares_.empty() || squares_.back().small != g.small)
        squares_.push_back({g.small, 0, square_ = aligned(square_)});
      g.gram = square_, square_ += bytes_of(g.count * g.small * g.small);
      squares_.back().count += g.count;
    }
    square_ = aligned(square_);
    squares_at_ = 2 * whole_ + 2 * square_;
    inverse_at_ = squares_at_ + aligned(chunks_ * static_cast<int64_t>(sizeof(double)));
    const int64_t bytes = inverse_at_ + places_ * static_cast<int64_t>(sizeof(float));
    scratch_ = static_cast<std::byte*>(cuda.scratch(static_cast<size_t>(bytes)));
  }

  void prepare(CudaBackend& cuda) {
    const auto product = [&](GemmShape shape, int64_t row1, int64_t row2) {
      shape.in = shape.out = type(), shape.shared_out = true;
      size_t alignment = 16;
      while (static_cast<size_t>(bytes_of(row1)) % alignment != 0 ||
             static_cast<size_t>(bytes_of(row2)) % alignment != 0)
        alignment /= 2;
      return cuda.gemms().prepare(shape, alignment);
    };
    for (Group& g : groups_) {
      g.to_gram = product(
          {.m = g.small, .n = g.small, .k = g.large, .b_transposed = true, .batch = g.count},
          g.small, g.large);
      g.to_x = product({.m = g.small, .n = g.large, .k = g.small, .batch = g.count, .beta = kA},
                       g.small, g.large);
    }
    for (Square& s : squares_)
      s.product = product(
          {.m = s.small, .n = s.small, .k = s.small, .batch = s.count, .alpha = kC, .beta = kB},
          s.small, s.small);
  }

  // x <- a x + (b A + c A A) x with A = x x^T, from one of the two forms of x to the other.
  void iterate(int step) {
    std::byte *from = scratch_ + step % 2 * whole_, *to = scratch_ + (step + 1) % 2 * whole_;
    std::byte *gram = scratch_ + 2 * whole_, *polynomial = gram + square_;
    for (const Group& g : groups_) g.to_gram.launch(from + g.x, from + g.x, gram + g.gram);
    for (const Square& s : squares_)
      s.product.launch_with(gram + s.gram, gram + s.gram, gram + s.gram, polynomial + s.gram);
    for (const Group& g : groups_)
      g.to_x.launch_with(polynomial + g.gram, from + g.x, from + g.x, to + g.x);
  }

  template <class T, bool kIn>
  void move_all(const Place* places, const float* inverse) {
    for (const Group& g : groups_) {
      const dim3 grid(blocks_for(g.large, kTile), blocks_for(g.small, kTile),
                      static_cast<unsigned>(g.count));
      auto* x = reinterpret_cast<T*>(scratch_ + (kIn ? 0 : kSteps % 2) * whole_ + g.x);
      move<T, kIn><<<grid, dim3(kTile, kTileRows), 0, stream_>>>(
          args_.gradient, x, places + g.first, inverse + g.first, static_cast<int>(g.small),
          static_cast<int>(g.large));
    }
  }

  bool bf16_ = false;
  cudaStream_t stream_;
  MomentumArgs args_{};
  std::vector<Group> groups_;
  std::vector<Square> squares_;
  unsigned chunks_ = 0, places_ = 0;
  Buffer chunk_table_, place_table_;
  int64_t whole_ = 0, square_ = 0, squares_at_ = 0, inverse_at_ = 0;  // bytes
  std::byte* scratch_ = nullptr;
};

}  // namespace

KernelPtr lower(CudaBackend& cuda, const Orthogonalize& op, const Operands& io) {
  const auto& [momentum, nesterov, bf16, matrices] = op;
  if (matrices.empty()) return make_kernel([] {});
  return std::make_unique<MuonKernel>(cuda, op, io);
}

}  // namespace vitrum::cuda
