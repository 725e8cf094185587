#include "vitrum/cuda/attention/attend_pool.cuh"

namespace vitrum::cuda {
namespace {

using namespace attend_pool;

__global__ void pool_forward(Args<Mixed> args) {
  extern __shared__ __align__(16) float shared[];
  forward(args, shared);
}
__global__ void pool_backward(Args<Mixed> args) {
  extern __shared__ __align__(16) float shared[];
  backward(args, shared);
}
// dq = the parts of all images, in their order.
__global__ void add_parts(const float* parts, int64_t images, int64_t width, Mixed dq) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= width) return;
  float sum = 0;
  for (int64_t image = 0; image < images; ++image) sum += parts[image * width + i];
  dq.store(i, sum);
}

__global__ void lookup(Mixed table, const int32_t* ids, Mixed y, int64_t count, int64_t width) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < count * width) y.store(at, table.load(ids[at / width] * width + at % width));
}

Args<Mixed> args_of(const TensorView& kv, const TensorView& q, int64_t heads) {
  return {.kv = mixed(kv),
          .q = mixed(q),
          .tokens = static_cast<int>(kv.shape[1]),
          .heads = static_cast<int>(heads),
          .size = static_cast<int>(kv.shape[2] / 2 / heads)};
}

// ---- lowering ----

// Bytes of shared memory, where the scores of a head fit into it; else every block has as much of
// the card's own. `parts`: floats for args.dq, which come from the same block of scratch.
size_t take_room(CudaBackend& cuda, int64_t blocks, int64_t parts, Args<Mixed>& args) {
  constexpr int64_t kUsual = (48 << 10) / sizeof(float);
  const int64_t each = shared_floats(args.tokens);
  const bool fits = each <= kUsual;
  const int64_t wanted = parts + (fits ? 0 : blocks * each);
  float* scratch = wanted > 0 ? cuda.scratch_of<float>(wanted) : nullptr;
  if (parts > 0) args.dq = scratch;
  if (!fits) args.room = scratch + parts;
  return fits ? static_cast<size_t>(each) * sizeof(float) : 0;
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const AttendPool& op, const Operands& io) {
  const auto& [heads] = op;
  const TensorView kv = io.in[AttendPool::kKv];
  Args<Mixed> args = args_of(kv, io.in[AttendPool::kQ], heads);
  args.out = mixed(io.out[AttendPool::kY]);
  const int64_t blocks = kv.shape[0] * heads;
  const size_t shared = take_room(cuda, blocks, /*parts=*/0, args);
  return launch_kernel(cuda, pool_forward, static_cast<unsigned>(blocks), kThreads, shared, args);
}

KernelPtr lower(CudaBackend& cuda, const AttendPoolBwd& op, const Operands& io) {
  const auto& [heads] = op;
  const TensorView kv = io.in[AttendPoolBwd::kKv], dkv = operand(io.out, AttendPoolBwd::kDkv),
                   dq = operand(io.out, AttendPoolBwd::kDq);
  const int64_t images = kv.shape[0], width = kv.shape[2] / 2;
  Args<Mixed> args = args_of(kv, io.in[AttendPoolBwd::kQ], heads);
  args.dy = mixed(io.in[AttendPoolBwd::kDy]), args.out = mixed(dkv);
  args.writes_dkv = dkv.data != nullptr;
  const size_t shared = take_room(cuda, images * heads, dq.data ? images * width : 0, args);
  const auto blocks = static_cast<unsigned>(images * heads);
  return make_kernel([=, stream = cuda.stream(), sum = mixed(dq)] {
    pool_backward<<<blocks, kThreads, shared, stream>>>(args);
    if (args.dq)
      add_parts<<<blocks_for(width, kThreads), kThreads, 0, stream>>>(args.dq, images, width, sum);
  });
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Lookup>&, const Operands& io) {
  const TensorView table = io.in[Lookup::kTable], ids = io.in[Lookup::kIds];
  const int64_t count = ids.shape.numel(), width = table.shape[-1];
  return launch_kernel(cuda, lookup, blocks_for(count * width, kThreads), kThreads, 0, mixed(table),
                       static_cast<const int32_t*>(ids.data), mixed(io.out[Lookup::kY]), count,
                       width);
}

}  // namespace vitrum::cuda
