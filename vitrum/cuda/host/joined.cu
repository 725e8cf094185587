// Fusion of neighbouring nodes into one kernel: a LayerNorm with the residual branch before it and
// the linear layers before and behind it; rotary positions with the layer before them; the ends of
// residual branches with their sum; backward the norm with the branch and the layer behind
// the norm; and the gradient of an MLP; batch norm with the convolution before it and the running
// statistics. Each alone would be a pass over a whole tensor.
#include <algorithm>
#include <optional>

#include "vitrum/cuda/attention/rotate.h"
#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/linear/e4m3.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/linear_add.h"
#include "vitrum/cuda/linear/linear_norm.h"
#include "vitrum/cuda/norm/batch_norm.h"
#include "vitrum/cuda/primitives/branch_sum.h"

namespace vitrum::cuda {
namespace {

template <class T>
const T* op_at(std::span<const ChainNode> chain, size_t i) {
  return i < chain.size() ? std::get_if<T>(chain[i].op) : nullptr;
}

// Whether it only changes the order of an image's tokens.
bool reorders(const GatherTokens& op, const Operands& io) {
  const auto& [tokens, width, from] = op;
  if (io.in[GatherTokens::kX].shape.numel() != io.out[GatherTokens::kY].shape.numel() ||
      width != io.in[GatherTokens::kX].shape[-1] || tokens != static_cast<int64_t>(from.size()))
    return false;
  std::vector<bool> seen(from.size(), false);
  for (int32_t t : from) {
    if (t < 0 || seen[static_cast<size_t>(t)]) return false;
    seen[static_cast<size_t>(t)] = true;
  }
  return true;
}

// Which node of a chain is what.
struct NormChain {
  // behind: backward, the layer before `linear`; before, after: changes of order.
  std::optional<size_t> behind, linear, before, scale, drop, after;
  size_t norm = 0, count = 0;
};

// The next node, if it is a T that reads `result` of the one before, as operand 0.
template <class T>
std::optional<size_t> take(std::span<const ChainNode> chain, size_t& i, size_t result = 0,
                           bool only = true) {
  if (!op_at<T>(chain, i)) return {};
  const ChainNode& node = chain[i];
  if (i > 0 && (node.result != result || node.operand != 0 || (only && !node.only))) return {};
  if constexpr (std::is_same_v<T, GatherTokens>)
    if (!reorders(std::get<GatherTokens>(*node.op), node.io)) return {};
  return i++;
}

bool one_type(std::span<const ChainNode> chain, DType dtype) {
  for (const ChainNode& node : chain)
    if (node.io.in.front().dtype != dtype || node.io.out.front().dtype != dtype) return false;
  return true;
}

bool suits(std::span<const ChainNode> chain, const NormChain& found) {
  const TensorView& x = chain[found.norm].io.in.front();
  return found.count > 1 && x.shape.rows() > 0 && x.shape.rows() < INT32_MAX &&
         x.shape[-1] % 8 == 0 && x.shape[-1] <= kMaxVectorsWithBranch * kSpan &&
         one_type(chain.first(found.count), x.dtype);
}

// Whether a norm adds the result of the node before, and its sum is wanted.
bool adds_to_norm(const ChainNode& norm) {
  return norm.result == 0 && norm.operand == AddLayerNorm::kB && norm.only &&
         !absent(norm.io.out[AddLayerNorm::kSum]);
}

// Whether node i adds the result of the one before to a tensor of the same kind.
bool ends_in_sum(std::span<const ChainNode> chain, size_t i) {
  if (!op_at<Add>(chain, i) || chain[i].result != 0 || !chain[i].only) return false;
  const TensorView &a = chain[i].io.in[Add::kA], &b = chain[i].io.in[Add::kB];
  return a.shape == b.shape && a.dtype == b.dtype;
}

std::optional<NormChain> forward_chain(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  NormChain found;
  size_t i = 0;
  if (op_at<LayerNorm>(chain, i)) {
    found.after = take<GatherTokens>(chain, ++i);
    found.count = i;
    return suits(chain, found) ? std::optional(found) : std::nullopt;
  }
  if (const auto* linear = op_at<Linear>(chain, 0);
      linear &&
      choose_linear_norm(cuda.card(), linear_task(*linear, chain[0].io)) != LinearNormKernel::kNone)
    found.linear = i++;
  else
    found.before = take<GatherTokens>(chain, i);
  found.scale = take<ChannelScale>(chain, i);
  found.drop = take<DropPath>(chain, i);
  if (!op_at<AddLayerNorm>(chain, i)) return {};
  if (i > 0 && (chain[i].result != 0 || chain[i].operand != 1 || !chain[i].only)) return {};
  found.norm = i++;
  found.after = take<GatherTokens>(chain, i, /*result=*/1);
  found.count = i;
  return suits(chain, found) ? std::optional(found) : std::nullopt;
}

// Whether rotary positions or a gated activation can be the epilogue of the layer before them.
bool fuses(const CudaBackend& cuda, const ChainNode& linear, const ChainNode& next) {
  const LinearTask task = linear_task(std::get<Linear>(*linear.op), linear.io);
  if (!is_bf16(next.io.out.front())) return false;
  if (const auto* gate = std::get_if<Gate>(next.op))
    return fuses_gate(cuda.card(), task, gate->act);
  return fuses_rotation(cuda.card(), task, task.columns / 3 / std::get<Rotate>(*next.op).heads);
}

// Whether a norm of bf16 leaves the normed rows only, by columns' numbers of its own.
bool leaves_rows_only(const ChainNode& node) {
  return is_bf16(node.io.in[LayerNorm::kX]) && is_bf16(node.io.out[LayerNorm::kY]) &&
         !absent(node.io.in[LayerNorm::kWeight]) &&
         absent(operand(node.io.out, LayerNorm::kMean)) &&
         absent(operand(node.io.out, LayerNorm::kRstd));
}

// Two linear layers with a residual sum and its norm between them; the sum is wanted, the norm's
// statistics are not. Before the first there may be a norm, too: inner.
struct ThroughNorm {
  LinearNormLinearKernel kernel = LinearNormLinearKernel::kNone;
  std::optional<size_t> inner, scale, rotate, gate;
  size_t first = 0, norm = 0, second = 0, count = 0;
};
std::optional<ThroughNorm> through_norm(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  ThroughNorm found;
  size_t i = 0;
  found.inner = take<LayerNorm>(chain, i);
  const auto linear = take<Linear>(chain, i);
  if (!linear || (found.inner && !leaves_rows_only(chain[0]))) return {};
  found.first = *linear;
  const auto* before = op_at<Linear>(chain, found.first);
  found.scale = take<ChannelScale>(chain, i);
  found.norm = i, found.second = i + 1;
  const auto* behind = op_at<Linear>(chain, found.second);
  if (!op_at<AddLayerNorm>(chain, found.norm) || !behind) return {};
  const ChainNode &norm = chain[found.norm], &second = chain[found.second];
  if (norm.result != 0 || norm.operand != 1 || !norm.only || second.result != 1 ||
      second.operand != 0 || !second.only)
    return {};
  if (!is_bf16(norm.io.in[AddLayerNorm::kA]) || !is_bf16(norm.io.in[AddLayerNorm::kB]) ||
      absent(norm.io.out[AddLayerNorm::kSum]) ||
      !absent(operand(norm.io.out, AddLayerNorm::kMean)) ||
      !absent(operand(norm.io.out, AddLayerNorm::kRstd)))
    return {};
  const LinearTask task = linear_task(*before, chain[found.first].io);
  found.kernel = choose_linear_norm_linear(cuda.card(), task, linear_task(*behind, second.io));
  found.count = found.second + 1;
  if (found.kernel == LinearNormLinearKernel::kNone) return {};
  if (found.inner && (found.kernel != LinearNormLinearKernel::kTile || !task.frozen || found.scale))
    return {};
  if (found.kernel == LinearNormLinearKernel::kSmallM) return found;
  const auto fits = [&](const auto& node) { return node && fuses(cuda, second, chain[*node]); };
  size_t last = found.count;
  if (const auto rotate = take<Rotate>(chain, last); fits(rotate))
    found.rotate = rotate, found.count = last;
  else if (const auto gate = take<Gate>(chain, last = found.count); fits(gate))
    found.gate = gate, found.count = last;
  return found;
}

// A layer with its rotary positions, or its gated activation: then its own result may be wanted,
// too.
bool is_layer_with_epilogue(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  size_t i = 1;
  const bool follows = op_at<Linear>(chain, 0) &&
                       (take<Rotate>(chain, i) || take<Gate>(chain, i, 0, /*only=*/false));
  return follows && fuses(cuda, chain[0], chain[1]);
}

// A branch that ends in a norm, and the sum, with a copy of it in another order: Swin V2's.
std::optional<NormChain> post_norm_chain(std::span<const ChainNode> chain) {
  NormChain found;
  size_t i = 0;
  found.before = take<GatherTokens>(chain, i);
  const auto norm = take<LayerNorm>(chain, i);
  if (!norm) return {};
  found.norm = *norm;
  found.drop = take<DropPath>(chain, i);
  if (!ends_in_sum(chain, i++)) return {};
  found.after = take<GatherTokens>(chain, i, 0, /*only=*/false);
  found.count = i;
  return suits(chain, found) ? std::optional(found) : std::nullopt;
}

// A branch that is scaled by channel or dropped, and the sum, by themselves or behind a layer; with
// a layer also where the sum is that of AddLayerNorm.
struct SumChain {
  std::optional<size_t> linear, scale, drop, norm;
  size_t count = 0;
};
std::optional<SumChain> sum_chain(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  SumChain found;
  size_t i = 0;
  if (const auto* linear = op_at<Linear>(chain, 0)) {
    if (!adds_residual(cuda.card(), linear_task(*linear, chain[0].io))) return {};
    found.linear = i++;
  }
  found.scale = take<ChannelScale>(chain, i);
  if (!found.linear) found.drop = take<DropPath>(chain, i);
  found.count = i + 1;
  if (i == 0 || i >= chain.size()) return {};
  if (found.linear && op_at<AddLayerNorm>(chain, i)) found.norm = i;
  const bool sums = found.norm ? adds_to_norm(chain[i]) : ends_in_sum(chain, i);
  return sums && one_type(chain.first(found.count), DType::kBF16) ? std::optional(found)
                                                                  : std::nullopt;
}

// Backward through two linear layers with GELU between them.
bool is_mlp(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  const auto *behind = op_at<LinearBwd>(chain, 0), *before = op_at<LinearBwd>(chain, 1);
  return behind && before && chain[1].result == 0 && chain[1].operand == 0 && chain[1].only &&
         choose_mlp_bwd(cuda, *behind, chain[0].io, *before, chain[1].io) != GeluBwdKernel::kNone;
}

// The same with GELU's result before them, for the weights of the later layer, and for nobody else:
// the kernel that reads what GELU was given leaves that, too.
constexpr size_t kMlpAgain = 3;
bool is_mlp_again(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  const auto* again = op_at<Activation>(chain, 0);
  if (!again || chain.size() < kMlpAgain || chain[0].in.empty()) return false;
  const auto& [act] = *again;
  const ChainNode &behind = chain[1], &before = chain[2];
  return act == Act::kGelu && behind.result == 0 && behind.operand == LinearBwd::kX &&
         behind.only && is_mlp(cuda, chain.subspan(1)) &&
         choose_gelu_bwd(cuda.card(), input_gradient_task(behind.io)) == GeluBwdKernel::kTile &&
         before.in[LinearBwd::kSaved] == chain[0].in[Activation::kX] &&
         is_bf16(chain[0].io.out[Activation::kY]);
}

// The gradient of the sum goes on past the branch, so others may read it.
std::optional<NormChain> backward_chain(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  NormChain found;
  size_t i = 0;
  if (is_mlp(cuda, chain)) found.behind = i++;
  if (op_at<LinearBwd>(chain, i) &&
      fuses_linear_norm_bwd(cuda.card(), input_gradient_task(chain[i].io)))
    found.linear = i++;
  found.before = take<GatherTokens>(chain, i);
  if (!op_at<LayerNormBwd>(chain, i)) return {};
  if (i > 0 && (chain[i].result != 0 || chain[i].operand != 0 || !chain[i].only)) return {};
  found.norm = i++;
  const auto first = [&] { return i == found.norm + 1; };
  found.drop = take<DropPath>(chain, i, 0, !first());
  found.scale = take<ChannelScaleBwd>(chain, i, 0, !first());
  found.after = take<GatherTokens>(chain, i, 0, !first());
  found.count = i;
  if (found.linear) {
    // Its kernel has no room for another sum: the branch alone saves more.
    const Operands& norm = chain[found.norm].io;
    if (found.scale ||
        operand(norm.in, LayerNormBwd::kDskip).shape != norm.in[LayerNormBwd::kX].shape)
      return {};
  }
  return suits(chain, found) ? std::optional(found) : std::nullopt;
}

// Two gradients meet before a batch norm whose ReLU hands the sum on: its first pass reads both.
bool meets_batch_norm(std::span<const ChainNode> chain) {
  if (!op_at<Add>(chain, 0) || !op_at<BatchNormBwd>(chain, 1)) return false;
  const Operands &sum = chain[0].io, &norm = chain[1].io;
  const DType dtype = norm.in[BatchNormBwd::kX].dtype;
  return chain[1].operand == BatchNormBwd::kDy && chain[1].only &&
         one_type(chain.first(2), dtype) && sum.in[Add::kB].dtype == dtype &&
         !absent(operand(norm.out, BatchNormBwd::kDskip));
}

// A batch norm and the running statistics that its own move.
bool moves_running(std::span<const ChainNode> chain) {
  if (!op_at<BatchNorm>(chain, 0)) return false;
  const auto* stats = op_at<RunningStats>(chain, 1);
  if (!stats || chain[1].result != BatchNorm::kMean || chain[1].operand != RunningStats::kMean)
    return false;
  const ChainNode &norm = chain[0], &running = chain[1];
  const auto same = [](const std::vector<int32_t>& a, size_t i, const std::vector<int32_t>& b,
                       size_t k) {
    return (i < a.size() ? a[i] : -1) == (k < b.size() ? b[k] : -1);
  };
  const Shape &x = norm.io.in[BatchNorm::kX].shape, &w = norm.io.in[BatchNorm::kWeight].shape;
  return same(running.in, RunningStats::kVar, norm.out, BatchNorm::kVar) &&
         same(running.in, RunningStats::kSampleWeight, norm.in, BatchNorm::kSampleWeight) &&
         x[0] > 0 && stats->samples == x[0] &&
         stats->samples * stats->positions * w.numel() == x.numel();
}

// A convolution that leaves what the batch norm of its result wants to know.
bool feeds_batch_norm(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  const auto* conv = op_at<Conv2d>(chain, 0);
  if (!conv || !op_at<BatchNorm>(chain, 1)) return false;
  const Operands &product = chain[0].io, &norm = chain[1].io;
  const TensorView skip = operand(norm.in, BatchNorm::kSkip);
  return chain[1].result == Conv2d::kY && chain[1].operand == BatchNorm::kX &&
         absent(operand(product.in, Conv2d::kNormWeight)) && !absent(norm.out[BatchNorm::kY]) &&
         one_type(chain.first(2), DType::kBF16) && is_bf16(product.in[Conv2d::kWeight]) &&
         (absent(skip) || is_bf16(skip)) && leaves_moments(cuda.card(), conv_task(*conv, product));
}

// A branch, and the tables its orders are in.
struct Built {
  Branch branch;
  std::vector<Buffer> tables;

  RowOrder order(CudaBackend& cuda, const std::vector<int32_t>& table) {
    const size_t bytes = table.size() * sizeof(int32_t);
    Buffer& buffer = tables.emplace_back(cuda.allocate(bytes));
    cuda.upload({buffer.data(), {static_cast<int64_t>(bytes)}, DType::kU8}, table.data());
    return {reinterpret_cast<const int32_t*>(buffer.data()), static_cast<uint32_t>(table.size())};
  }
};

std::vector<int32_t> inverse(const std::vector<int32_t>& order) {
  std::vector<int32_t> to(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    to[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return to;
}

Built build(CudaBackend& cuda, std::span<const ChainNode> joined, const NormChain& found) {
  Built built;
  const auto order_of = [&](size_t node) { return std::get<GatherTokens>(*joined[node].op).from; };
  if (found.before) {
    // Backward, rows come out of the linear layer's product: each must find its own in the norm.
    const bool rows_come = found.linear && op_at<LinearBwd>(joined, *found.linear);
    const std::vector<int32_t> from = order_of(*found.before);
    built.branch.from = built.order(cuda, rows_come ? inverse(from) : from);
  }
  if (found.after) built.branch.to = built.order(cuda, inverse(order_of(*found.after)));
  if (found.drop) {
    const auto& [drop, site] = std::get<DropPath>(*joined[*found.drop].op);
    const Operands& io = joined[*found.drop].io;
    const Shape& x = io.in[DropPath::kX].shape;
    built.branch.drop = drop_site(io.in[DropPath::kRng], drop, site);
    built.branch.sample_rows = static_cast<uint32_t>(x.rows() / x[0]);
  }
  return built;
}

KernelPtr with_tables(KernelPtr kernel, std::vector<Buffer> tables) {
  const std::string name(kernel->name());
  return named(name, make_kernel([kernel = std::shared_ptr<Kernel>(std::move(kernel)),
                                  tables = std::move(tables)] { kernel->launch(); }));
}

KernelPtr lower_chain(CudaBackend& cuda, std::span<const ChainNode> joined, const NormChain& found,
                      const LayerNorm& norm) {
  Built built = build(cuda, joined, found);
  Operands io = joined[found.norm].io;
  io.out[LayerNorm::kY] = joined[*found.after].io.out[GatherTokens::kY];
  return with_tables(lower_forward(cuda, norm, io, built.branch), std::move(built.tables));
}

KernelPtr lower_chain(CudaBackend& cuda, std::span<const ChainNode> joined, const NormChain& found,
                      const AddLayerNorm& norm) {
  Built built = build(cuda, joined, found);
  if (found.scale) built.branch.gamma = joined[*found.scale].io.in[ChannelScale::kGamma].f32();
  Operands io = joined[found.norm].io;
  if (found.norm > 0) io.in[AddLayerNorm::kB] = joined[0].io.in.front();
  if (found.after) io.out[AddLayerNorm::kY] = joined[*found.after].io.out[GatherTokens::kY];
  const auto lower_linear = [&](const Linear& op, const Operands& linear) {
    const bool narrow =
        choose_linear_norm(cuda.card(), linear_task(op, linear)) == LinearNormKernel::kNarrow;
    if (narrow)
      return named("linear_norm", lower_linear_norm(cuda, linear, norm, io, built.branch));
    return named("tile, residual", lower_linear_sum(cuda, linear, norm, io, built.branch));
  };
  KernelPtr kernel = found.linear ? lower_linear(std::get<Linear>(*joined[0].op), joined[0].io)
                                  : lower_forward(cuda, norm, io, built.branch);
  return with_tables(std::move(kernel), std::move(built.tables));
}

bool is_free(const ChainNode& node, size_t operand) {
  return operand < node.free.size() && node.free[operand];
}

// GELU's result takes the place of what GELU was given.
KernelPtr lower_mlp_again(CudaBackend& cuda, std::span<const ChainNode> joined) {
  const Operands& before = joined[2].io;
  Operands behind = joined[1].io;
  const TensorView given = before.in[LinearBwd::kSaved];
  Buffer own;
  if (!is_free(joined[2], LinearBwd::kSaved)) own = cuda.allocate(given.bytes());
  TensorView& again = behind.in[LinearBwd::kX];
  again.data = own.data() ? own.data() : given.data;
  const LinearParts parts = mlp_bwd_parts(cuda, behind, before, again);
  std::shared_ptr<Kernel> first = lower(cuda, std::get<LinearBwd>(*joined[2].op), before, parts);
  std::shared_ptr<Kernel> then = lower(cuda, std::get<LinearBwd>(*joined[1].op), behind);
  return named("gelu_bwd, gelu again",
               make_kernel([first, then, own = std::make_shared<Buffer>(std::move(own))] {
                 first->launch(), then->launch();
               }));
}

// The gradient of linear layer `linear`, and of the one behind it where there is one.
KernelPtr lower_linear(CudaBackend& cuda, std::span<const ChainNode> joined, size_t linear,
                       LinearParts parts = {}) {
  const auto& op = std::get<LinearBwd>(*joined[linear].op);
  if (linear == 0) return lower(cuda, op, joined[0].io, parts);
  const LinearParts through = mlp_bwd_parts(cuda, joined[0].io, joined[linear].io, {});
  parts.to_d = through.to_d, parts.scratch = std::max(parts.scratch, through.scratch);
  // The one behind is done with what it was given when d is computed, which is as large.
  if (is_free(joined[0], LinearBwd::kX))
    parts.d = {joined[0].io.in[LinearBwd::kX].data, joined[linear].io.in[LinearBwd::kDy].shape,
               DType::kBF16};
  // The one behind has no memory for its dx: it makes the gradients of its parameters alone.
  std::shared_ptr<Kernel> behind = lower(cuda, std::get<LinearBwd>(*joined[0].op), joined[0].io);
  std::shared_ptr<Kernel> kernel = lower(cuda, op, joined[linear].io, parts);
  return make_kernel([behind, kernel] { behind->launch(), kernel->launch(); });
}

KernelPtr lower_chain(CudaBackend& cuda, std::span<const ChainNode> joined,
                      const NormChain& found) {
  Built built = build(cuda, joined, found);
  Operands io = joined[found.norm].io;
  const Operands& last = joined.back().io;
  if (found.linear) {
    io.column_sums = last.column_sums;
    LinearParts parts =
        linear_norm_bwd(cuda, joined[*found.linear].io, io, built.branch, last.out.front());
    return with_tables(
        named("linear_norm_bwd", lower_linear(cuda, joined, *found.linear, std::move(parts))),
        std::move(built.tables));
  }
  if (found.before) io.in[LayerNormBwd::kDy] = joined[0].io.in[GatherTokens::kX];
  BranchGradient gradient{.result = last.out.front(), .input = {}};
  if (found.scale) {
    const Operands& scale = joined[*found.scale].io;
    built.branch.gamma = scale.in[ChannelScaleBwd::kGamma].f32();
    gradient.input = scale.in[ChannelScaleBwd::kX];
    gradient.dgamma = operand(scale.out, ChannelScaleBwd::kDgamma).f32();
  }
  io.column_sums = last.column_sums;
  return with_tables(lower_backward(cuda, io, built.branch, gradient), std::move(built.tables));
}

KernelPtr lower_meeting(CudaBackend& cuda, std::span<const ChainNode> joined,
                        const BatchNormBwd& norm) {
  Operands io = joined[1].io;
  io.in[BatchNormBwd::kDy] = joined[0].io.in[Add::kA];
  return lower(cuda, norm, io, joined[0].io.in[Add::kB]);
}

// What the last node adds the branch to.
const TensorView& skip_of(const ChainNode& sum) {
  return sum.io.in[sum.operand == Add::kA ? Add::kB : Add::kA];
}

KernelPtr lower_post_norm(CudaBackend& cuda, std::span<const ChainNode> joined,
                          const NormChain& found) {
  Built built = build(cuda, joined, found);
  Operands io = joined[found.norm].io;
  if (found.before) io.in[LayerNorm::kX] = joined[0].io.in[GatherTokens::kX];
  const ChainNode& sum = joined[found.after ? found.count - 2 : found.count - 1];
  const TensorView ordered = found.after ? joined.back().io.out[GatherTokens::kY] : TensorView{};
  return with_tables(named("norm, residual",
                           lower_forward(cuda, std::get<LayerNorm>(*joined[found.norm].op), io,
                                         built.branch, skip_of(sum), sum.io.out[Add::kY], ordered)),
                     std::move(built.tables));
}

// The layer with its sum, and then the norm of that.
KernelPtr lower_sum_norm(CudaBackend& cuda, const AddLayerNorm& op, const Operands& layer,
                         const TensorView& gamma, const Operands& norm) {
  const auto& [eps] = op;
  const TensorView& sum = norm.out[AddLayerNorm::kSum];
  const Operands of_sum{
      .in = {sum, norm.in[AddLayerNorm::kWeight], operand(norm.in, AddLayerNorm::kBias)},
      .out = {operand(norm.out, AddLayerNorm::kY), operand(norm.out, AddLayerNorm::kMean),
              operand(norm.out, AddLayerNorm::kRstd)}};
  std::shared_ptr<Kernel> add_up =
      lower_linear_add(cuda, layer, gamma.f32(), norm.in[AddLayerNorm::kA], sum);
  std::shared_ptr<Kernel> normalise = lower(cuda, LayerNorm{.eps = eps}, of_sum);
  return make_kernel([add_up, normalise] { add_up->launch(), normalise->launch(); });
}

KernelPtr lower_chain(CudaBackend& cuda, std::span<const ChainNode> joined, const SumChain& found) {
  const TensorView gamma =
      found.scale ? joined[*found.scale].io.in[ChannelScale::kGamma] : TensorView{};
  if (found.norm)
    return named("cublas, residual", lower_sum_norm(cuda, std::get<AddLayerNorm>(*joined.back().op),
                                                    joined[0].io, gamma, joined.back().io));
  const TensorView &skip = skip_of(joined.back()), &y = joined.back().io.out[Add::kY];
  if (found.linear)
    return named("cublas, residual", lower_linear_add(cuda, joined[0].io, gamma.f32(), skip, y));
  BranchSum sum{.branch = joined[0].io.in.front(), .skip = skip, .y = y, .gamma = gamma};
  if (found.drop) {
    const auto& [drop, site] = std::get<DropPath>(*joined[*found.drop].op);
    sum.drop = drop_site(joined[*found.drop].io.in[DropPath::kRng], drop, site);
  }
  return named("residual", lower_branch_sum(cuda, sum));
}

KernelPtr lower_chain(CudaBackend& cuda, std::span<const ChainNode> joined,
                      const ThroughNorm& found) {
  const auto& behind = std::get<Linear>(*joined[found.second].op);
  const auto& norm = std::get<AddLayerNorm>(*joined[found.norm].op);
  const Operands &first = joined[found.first].io, &between = joined[found.norm].io,
                 &second = joined[found.second].io;
  Branch branch;
  if (found.scale) branch.gamma = joined[*found.scale].io.in[ChannelScale::kGamma].f32();
  if (found.kernel == LinearNormLinearKernel::kSmallM) {
    const auto scaled = std::make_shared<ScaledLayer>(scaled_layer(cuda, first, branch.gamma));
    Operands in_place = first;
    in_place.in[Linear::kWeight] = scaled->weight;
    if (scaled->bias) in_place.in[Linear::kBias] = scaled->bias;
    const std::shared_ptr<Kernel> kernel =
        lower_small_m_norm(cuda, in_place, norm, between, behind, second);
    return named("small_m, norm folded", make_kernel([scaled, kernel] { kernel->launch(); }));
  }
  std::optional<Rotation> rotation;
  if (found.rotate)
    rotation = rotation_of(std::get<Rotate>(*joined[*found.rotate].op), joined[*found.rotate].io);
  std::optional<InnerNorm> inner;
  if (found.inner) inner = {std::get<LayerNorm>(*joined[*found.inner].op), joined[*found.inner].io};
  return named(
      std::string(inner ? "tile, norms folded" : "tile, norm folded") + (rotation     ? ", rotated"
                                                                         : found.gate ? ", gated"
                                                                                      : ""),
      lower_linear_norm_linear(cuda, first, branch, norm, between, behind, second,
                               joined[found.count - 1].io.out.front(), rotation,
                               found.gate.has_value(), inner));
}

}  // namespace

size_t CudaBackend::joins(std::span<const ChainNode> chain) const {
  if (const size_t count = joins_e4m3(*this, chain); count > 1) return count;
  if (const auto found = through_norm(*this, chain)) return found->count;
  if (is_layer_with_epilogue(*this, chain)) return 2;
  if (is_mlp_again(*this, chain)) return kMlpAgain;
  if (const auto found = post_norm_chain(chain)) return found->count;
  if (const auto found = forward_chain(*this, chain)) return found->count;
  if (const auto found = sum_chain(*this, chain)) return found->count;
  if (const auto found = backward_chain(*this, chain)) return found->count;
  if (feeds_batch_norm(*this, chain)) return moves_running(chain.subspan(1)) ? 3 : 2;
  return is_mlp(*this, chain) || meets_batch_norm(chain) || moves_running(chain) ? 2 : 1;
}

KernelPtr CudaBackend::lower_joined(std::span<const ChainNode> joined) {
  if (joins_e4m3(*this, joined) > 1) return lower_joined_e4m3(*this, joined);
  if (const auto found = through_norm(*this, joined)) return lower_chain(*this, joined, *found);
  if (is_layer_with_epilogue(*this, joined)) {
    const Operands &linear = joined[0].io, &behind = joined[1].io;
    if (const auto* rotate = op_at<Rotate>(joined, 1))
      return named("tile, rotated", lower_linear_rotate(*this, linear, *rotate, behind));
    return named("tile, gated", lower_linear_gate(*this, linear, behind.out[Gate::kY]));
  }
  if (is_mlp_again(*this, joined)) return lower_mlp_again(*this, joined);
  if (const auto found = post_norm_chain(joined)) return lower_post_norm(*this, joined, *found);
  if (const auto found = forward_chain(*this, joined)) {
    if (const auto* norm = op_at<LayerNorm>(joined, 0))
      return lower_chain(*this, joined, *found, *norm);
    return lower_chain(*this, joined, *found, std::get<AddLayerNorm>(*joined[found->norm].op));
  }
  if (const auto found = sum_chain(*this, joined)) return lower_chain(*this, joined, *found);
  if (const auto found = backward_chain(*this, joined)) return lower_chain(*this, joined, *found);
  if (const auto* conv = op_at<Conv2d>(joined, 0)) {
    const auto* stats = op_at<RunningStats>(joined, 2);
    const bool pixels = conv_task(*conv, joined[0].io).pixel_by_pixel();
    return named(pixels ? "small_k, batch norm" : "tile, batch norm",
                 lower_conv_norm(*this, *conv, joined[0].io, std::get<BatchNorm>(*joined[1].op),
                                 joined[1].io, stats, stats ? joined[2].io : Operands{}));
  }
  if (const auto* norm = op_at<BatchNorm>(joined, 0))
    return named("running statistics", cuda::lower(*this, *norm, joined[0].io,
                                                   op_at<RunningStats>(joined, 1), joined[1].io));
  if (const auto* norm = op_at<BatchNormBwd>(joined, 1))
    return named("sum, batch norm", lower_meeting(*this, joined, *norm));
  return named("gelu_bwd", lower_linear(*this, joined, 1));
}

bool CudaBackend::adds_columns(std::span<const ChainNode> joined) const {
  if (const auto* attention = op_at<AttentionBwd>(joined, 0))
    return cuda::adds_columns(*this, *attention, joined[0].io);
  const auto found = backward_chain(*this, joined);
  const size_t norm = found ? found->norm : 0;
  return op_at<LayerNormBwd>(joined, norm) && cuda::adds_columns(LayerNormBwd{}, joined[norm].io);
}

}  // namespace vitrum::cuda
