// Patch dropout: which tokens of an image the model goes on with.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

struct Choice {
  const RandomState* rng;
  uint32_t site;
  int prefix, tokens, kept;  // of an image; `kept` with the prefix
  bool back;                 // rows kept become tokens again
  __host__ __device__ int patches() const { return tokens - prefix; }
  // Draws, in blocks of four, and in their place what becomes of them; and a flag for each token.
  __host__ __device__ int table_size() const { return tokens + 3; }
  size_t shared_bytes() const { return (table_size() + tokens) * sizeof(int); }
  __device__ int given() const { return back ? kept : tokens; }   // rows of an image before
  __device__ int result() const { return back ? tokens : kept; }  // and after
};

// For each row of an image's result the row that it is, or -1, in shared memory. A patch stays if
// few enough draw less than it; equal draws are in the order of their tokens.
__device__ const int* choose(const Choice& c, int64_t image) {
  extern __shared__ int table[];
  auto* draws = reinterpret_cast<uint32_t*>(table);
  int* stays = table + c.table_size();
  const int patches = c.patches(), blocks = static_cast<int>(wide_draws_per_row(patches));
  for (int i = threadIdx.x; i < blocks; i += kThreads) {
    const PhiloxBlock block = draw_block(*c.rng, c.site, static_cast<uint64_t>(image * blocks + i));
#pragma unroll
    for (int k = 0; k < 4; ++k) draws[4 * i + k] = block[k];
  }
  __syncthreads();
  for (int t = threadIdx.x; t < c.tokens; t += kThreads) {
    const int own = t - c.prefix;
    int less = 0;
    const uint32_t draw = own < 0 ? 0 : draws[own];
    for (int u = 0; u < patches; ++u) less += draws[u] < draw || (draws[u] == draw && u < own);
    stays[t] = own < 0 || less < c.kept - c.prefix;
  }
  __syncthreads();
  for (int t = threadIdx.x; t < c.tokens; t += kThreads) {
    int before = 0;
    for (int u = 0; u < t; ++u) before += stays[u];
    if (c.back)
      table[t] = stays[t] ? before : -1;
    else if (stays[t])
      table[before] = t;
  }
  __syncthreads();
  return table;
}

struct Sixteens {
  const uint4* x;
  uint4* y;
  __device__ void copy(int64_t to, int64_t from) const { y[to] = x[from]; }
  __device__ void clear(int64_t to) const { y[to] = make_uint4(0, 0, 0, 0); }
};
struct Ones {
  Mixed x, y;
  __device__ void copy(int64_t to, int64_t from) const { y.store(to, x.load(from)); }
  __device__ void clear(int64_t to) const { y.store(to, 0); }
};

// A block an image, of tokens of `parts` pieces.
template <class Pieces>
__global__ void keep_tokens(Pieces pieces, Choice c, int parts) {
  const int64_t image = blockIdx.x;
  const int* table = choose(c, image);
  for (int i = threadIdx.x; i < c.result() * parts; i += kThreads) {
    const int from = table[i / parts];
    const int64_t to = image * c.result() * parts + i;
    if (from < 0)
      pieces.clear(to);
    else
      pieces.copy(to, (image * c.given() + from) * parts + i % parts);
  }
}

KernelPtr lower_choice(CudaBackend& cuda, const Choice& choice, const TensorView& x,
                       const TensorView& y) {
  const int64_t width = x.shape[2], piece = 16 / static_cast<int64_t>(size_of(y.dtype));
  const bool wide = x.dtype == y.dtype && width % piece == 0 && aligned16(x) && aligned16(y);
  const auto launch = [&](auto pieces, int64_t parts) {
    const auto kernel = keep_tokens<decltype(pieces)>;
    if (choice.shared_bytes() > 48 << 10) allow_shared_memory(kernel, choice.shared_bytes());
    return launch_kernel(cuda, kernel, static_cast<unsigned>(x.shape[0]), kThreads,
                         choice.shared_bytes(), pieces, choice, static_cast<int>(parts));
  };
  if (!wide) return launch(Ones{mixed(x), mixed(y)}, width);
  return launch(Sixteens{static_cast<const uint4*>(x.data), static_cast<uint4*>(y.data)},
                width / piece);
}

Choice choice_of(const TensorView& rng, uint32_t site, int64_t prefix, int64_t tokens, int64_t kept,
                 bool back) {
  return {static_cast<const RandomState*>(rng.data),
          site,
          static_cast<int>(prefix),
          static_cast<int>(tokens),
          static_cast<int>(kept),
          back};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const KeepTokens& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const TensorView x = io.in[KeepTokens::kX], y = io.out[KeepTokens::kY],
                   rng = io.in[KeepTokens::kRng];
  return lower_choice(cuda, choice_of(rng, site, prefix, x.shape[1], y.shape[1], false), x, y);
}

KernelPtr lower(CudaBackend& cuda, const KeepTokensBwd& op, const Operands& io) {
  const auto& [prefix, site] = op;
  const TensorView dy = io.in[KeepTokensBwd::kDy], dx = io.out[KeepTokensBwd::kDx],
                   rng = io.in[KeepTokensBwd::kRng];
  return lower_choice(cuda, choice_of(rng, site, prefix, dx.shape[1], dy.shape[1], true), dy, dx);
}

}  // namespace vitrum::cuda
