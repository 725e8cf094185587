// Tokens chosen by chance: patch dropout, and what a masked autoencoder sees.
#include "vitrum/cuda/primitives/column_sums.cuh"
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

struct Choice {
  const RandomState* rng;
  uint32_t site;
  int prefix, tokens, kept;  // of an image; `kept` without the prefix
  bool dropped;              // those that are not kept are meant
  int chosen;                // how many tokens are
  bool back;                 // rows chosen become tokens again
  __host__ __device__ int patches() const { return tokens - prefix; }
  // Draws, in blocks of four, and in their place what becomes of them; and a flag for each token.
  __host__ __device__ int table_size() const { return tokens + 3; }
  size_t shared_bytes() const { return (table_size() + tokens) * sizeof(int); }
  __device__ int given() const { return back ? chosen : tokens; }   // rows of an image before
  __device__ int result() const { return back ? tokens : chosen; }  // and after
};

// For each token of an image whether it is chosen, in shared memory. A patch stays if few enough
// draw less than it; equal draws are in the order of their tokens.
__device__ const int* chosen_tokens(const Choice& c, int64_t image) {
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
    stays[t] = (own < 0 || less < c.kept) != c.dropped;
  }
  __syncthreads();
  return stays;
}

// For each row of an image's result the row that it is, or -1, in place of the draws.
__device__ const int* choose(const Choice& c, int64_t image) {
  extern __shared__ int table[];
  const int* stays = chosen_tokens(c, image);
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
  const float* fill;  // null: zeros
  bool narrow;        // y is bf16
  __device__ void copy(int64_t to, int64_t from) const { y[to] = x[from]; }
  __device__ void fill_in(int64_t to, int part) const {
    if (!fill)
      y[to] = make_uint4(0, 0, 0, 0);
    else if (narrow)
      store8(reinterpret_cast<bf16*>(y + to), load8(fill + 8 * part));
    else
      y[to] = reinterpret_cast<const uint4*>(fill)[part];
  }
};
struct Ones {
  Mixed x, y;
  const float* fill;
  __device__ void copy(int64_t to, int64_t from) const { y.store(to, x.load(from)); }
  __device__ void fill_in(int64_t to, int part) const { y.store(to, fill ? fill[part] : 0.0f); }
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
      pieces.fill_in(to, i % parts);
    else
      pieces.copy(to, (image * c.given() + from) * parts + i % parts);
  }
}

// The sums of an image's tokens that are not chosen, for each channel, in their order.
__global__ void sum_others(Mixed x, Choice c, int width, float* sums) {
  const int64_t image = blockIdx.x;
  const int* stays = chosen_tokens(c, image);
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0;
    for (int t = 0; t < c.tokens; ++t)
      if (!stays[t]) sum = __fadd_rn(sum, x.load((image * c.tokens + t) * width + i));
    sums[image * width + i] = sum;
  }
}

template <class Kernel>
void allow_table(const Kernel& kernel, const Choice& choice) {
  if (choice.shared_bytes() > 48 << 10) allow_shared_memory(kernel, choice.shared_bytes());
}

KernelPtr lower_choice(CudaBackend& cuda, const Choice& choice, const TensorView& x,
                       const TensorView& y, const TensorView& fill = {}) {
  const int64_t width = x.shape[2], piece = 16 / static_cast<int64_t>(size_of(y.dtype));
  const bool wide = x.dtype == y.dtype && width % piece == 0 && aligned16(x) && aligned16(y) &&
                    (!fill || aligned16(fill));
  const auto launch = [&](auto pieces, int64_t parts) {
    const auto kernel = keep_tokens<decltype(pieces)>;
    allow_table(kernel, choice);
    return launch_kernel(cuda, kernel, static_cast<unsigned>(x.shape[0]), kThreads,
                         choice.shared_bytes(), pieces, choice, static_cast<int>(parts));
  };
  if (!wide) return launch(Ones{mixed(x), mixed(y), fill.f32()}, width);
  return launch(Sixteens{static_cast<const uint4*>(x.data), static_cast<uint4*>(y.data), fill.f32(),
                         y.dtype == DType::kBF16},
                width / piece);
}

// += the sum of what is not chosen: an image each, and these in their order.
KernelPtr lower_sum(CudaBackend& cuda, const Choice& choice, const TensorView& x, float* rest) {
  const int64_t images = x.shape[0], width = x.shape[2];
  auto* sums = cuda.scratch_of<float>(images * width);
  allow_table(sum_others, choice);
  return make_kernel([=, x = mixed(x), stream = cuda.stream()] {
    sum_others<<<static_cast<unsigned>(images), kThreads, choice.shared_bytes(), stream>>>(
        x, choice, static_cast<int>(width), sums);
    launch_finish(sums, images, width, AddToColumns{rest}, stream);
  });
}

Choice choice_of(const TensorView& rng, const TokenChoice& choice, int64_t tokens, bool back) {
  const auto& [prefix, kept, site, dropped] = choice;
  return {static_cast<const RandomState*>(rng.data),
          site,
          static_cast<int>(prefix),
          static_cast<int>(tokens),
          static_cast<int>(kept),
          dropped,
          static_cast<int>(choice.count(tokens)),
          back};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const KeepTokens& op, const Operands& io) {
  const TensorView x = io.in[KeepTokens::kX], y = io.out[KeepTokens::kY],
                   rest = operand(io.out, KeepTokens::kRest);
  const auto& [wanted] = op;
  const Choice choice = choice_of(io.in[KeepTokens::kRng], wanted, x.shape[1], false);
  if (!rest) return lower_choice(cuda, choice, x, y);
  KernelPtr sum = lower_sum(cuda, choice, x, rest.f32());
  if (!y) return sum;
  return make_kernel([copy = lower_choice(cuda, choice, x, y), sum = std::move(sum)] {
    copy->launch();
    sum->launch();
  });
}

KernelPtr lower(CudaBackend& cuda, const PlaceTokens& op, const Operands& io) {
  const TensorView x = io.in[PlaceTokens::kX], y = io.out[PlaceTokens::kY];
  const auto& [wanted] = op;
  return lower_choice(cuda, choice_of(io.in[PlaceTokens::kRng], wanted, y.shape[1], true), x, y,
                      operand(io.in, PlaceTokens::kFill));
}

}  // namespace vitrum::cuda
