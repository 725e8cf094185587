// Attention: from an op to the kernel that attention/choose.h names.
#include "vitrum/cuda/attention/attention.cuh"
#include "vitrum/cuda/linear/e4m3.h"

namespace vitrum::cuda {
namespace {

AttentionTask task_of(const TensorView& qkv, int64_t heads, float drop) {
  return {.images = qkv.shape[0],
          .tokens = qkv.shape[1],
          .heads = heads,
          .size = qkv.shape[2] / 3 / heads,
          .dtype = qkv.dtype,
          .drop = drop != 0};
}

AttentionShape shape_of(const AttentionTask& task) {
  return {static_cast<int>(task.tokens), static_cast<int>(task.heads), static_cast<int>(task.size)};
}

void add_offsets(AttentionArgs& args, const TensorView& bias, const TensorView& mask) {
  args.bias = bias.f32(), args.mask = mask.f32();
  if (mask) args.masks = static_cast<int>(mask.shape[0]);
}

KernelPtr lower_forward(CudaBackend& cuda, const AttentionTask& task, const AttentionArgs& args) {
  const CardInfo& card = cuda.card();
  const int64_t images = task.images;
  const AttentionChoice choice = choose_attention(card, task);
  switch (choice.kernel) {
    case AttentionKernel::kOneTile: return one_tile_attention(cuda, args, images);
    case AttentionKernel::kShort: return short_attention(cuda, args, images, false);
    case AttentionKernel::kSmem: return smem_attention(cuda, args, images, choice.keys);
    case AttentionKernel::kChunked: return chunked_attention(cuda, args, images, choice.keys);
    case AttentionKernel::kWgmma:
      return wgmma_attention(cuda, args, images, *plan_wgmma(card, task));
    case AttentionKernel::kMmaSync:
      if (is_wide_mma_sync(card, task))
        return mma_sync_wide_attention(cuda, args, images, *plan_mma_sync(card, task));
      return mma_sync_attention(cuda, args, images, false, *plan_mma_sync(card, task));
    case AttentionKernel::kPlain: break;
  }
  return make_kernel([=, dtype = task.dtype, stream = cuda.stream()] {
    launch_plain_attention(args, images, dtype, stream);
  });
}

KernelPtr lower_backward(CudaBackend& cuda, const AttentionTask& task, const AttentionArgs& args) {
  const CardInfo& card = cuda.card();
  const int64_t images = task.images;
  switch (choose_attention(card, task).kernel) {
    case AttentionKernel::kOneTile: return one_tile_attention_bwd(cuda, args, images);
    case AttentionKernel::kShort: return short_attention(cuda, args, images, true);
    case AttentionKernel::kSmem: return smem_attention_bwd(cuda, args, images);
    case AttentionKernel::kChunked: return chunked_attention_bwd(cuda, args, images);
    case AttentionKernel::kWgmma:
      return wgmma_attention_bwd(cuda, args, images, *plan_wgmma(card, task));
    case AttentionKernel::kMmaSync:
      return mma_sync_attention(cuda, args, images, true, *plan_mma_sync(card, task));
    case AttentionKernel::kPlain: break;
  }
  float* partials =
      args.dbias ? cuda.scratch_of<float>(bias_partials(args.shape, images)) : nullptr;
  return make_kernel([=, dtype = task.dtype, stream = cuda.stream()] {
    launch_plain_attention_bwd(args, images, dtype, partials, stream);
  });
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const Attention& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  const TensorView qkv = io.in[Attention::kQkv], bias = operand(io.in, Attention::kBias),
                   mask = operand(io.in, Attention::kMask), y = io.out[Attention::kY];
  AttentionTask task = task_of(qkv, heads, drop);
  task.bias = static_cast<bool>(bias), task.mask = static_cast<bool>(mask);
  task.writes = static_cast<bool>(y);
  task.aligned = aligned16(qkv) && aligned16(y);
  AttentionArgs args{.shape = shape_of(task),
                     .qkv = qkv.data,
                     .y = nullptr,
                     .dy = nullptr,
                     .out = y.data,
                     .lse = operand(io.out, Attention::kLse).f32(),
                     .drop = drop_site(operand(io.in, Attention::kRng), drop, site)};
  add_offsets(args, bias, mask);
  return named(name_of(choose_attention(cuda.card(), task).kernel),
               lower_forward(cuda, task, args));
}

KernelPtr lower_attention_e4m3(CudaBackend& cuda, const Attention& op, const Operands& io,
                               const TensorView& y, float scale) {
  const auto& [heads, drop, site] = op;
  const AttentionTask task = task_of(io.in[Attention::kQkv], heads, drop);
  const AttentionArgs args{.shape = shape_of(task),
                           .qkv = io.in[Attention::kQkv].data,
                           .y = nullptr,
                           .dy = nullptr,
                           .out = nullptr,
                           .lse = nullptr,
                           .drop = {}};
  return smem_attention_e4m3(cuda, args, task.images, choose_attention(cuda.card(), task).keys,
                             y.e4m3(), scale);
}

static AttentionTask backward_task(const AttentionBwd& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  AttentionTask task = task_of(io.in[AttentionBwd::kQkv], heads, drop);
  task.backward = true;
  // Before memory is planned there are shapes only.
  task.bias = operand(io.in, AttentionBwd::kBias).shape.rank() > 0,
  task.mask = operand(io.in, AttentionBwd::kMask).shape.rank() > 0;
  return task;
}

bool adds_columns(const CudaBackend& cuda, const AttentionBwd& op, const Operands& io) {
  return choose_attention(cuda.card(), backward_task(op, io)).adds_columns;
}

KernelPtr lower(CudaBackend& cuda, const AttentionBwd& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  const TensorView dy = io.in[AttentionBwd::kDy], qkv = io.in[AttentionBwd::kQkv],
                   y = io.in[AttentionBwd::kY], dqkv = io.out[AttentionBwd::kDqkv];
  AttentionTask task = backward_task(op, io);
  task.writes = static_cast<bool>(dqkv);
  task.aligned = aligned16(qkv) && aligned16(y) && aligned16(dy) && aligned16(dqkv);
  AttentionArgs args{.shape = shape_of(task),
                     .qkv = qkv.data,
                     .y = y.data,
                     .dy = dy.data,
                     .out = dqkv.data,
                     .lse = io.in[AttentionBwd::kLse].f32(),
                     .drop = drop_site(operand(io.in, AttentionBwd::kRng), drop, site)};
  add_offsets(args, operand(io.in, AttentionBwd::kBias), operand(io.in, AttentionBwd::kMask));
  args.dbias = operand(io.out, AttentionBwd::kDbias).f32();
  const AttentionChoice choice = choose_attention(cuda.card(), task);
  if (choice.adds_columns) args.column_sums = io.column_sums.f32();
  KernelPtr kernel = lower_backward(cuda, task, args);
  if (!choice.adds_columns)
    kernel = with_column_sums(cuda, std::move(kernel), dqkv, io.column_sums);
  return named(name_of(choice.kernel), std::move(kernel));
}

}  // namespace vitrum::cuda
