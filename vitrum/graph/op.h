// The closed set of operations: plain structs of attributes. A backend that forgets one, or a
// differentiable one without a gradient rule, does not compile.
//
// Each comment gives (inputs) -> outputs. `?` is an optional input; outputs in [ ] are auxiliary:
// present only when a gradient rule asked for them, and opaque to everything but the matching
// backward op. Any output may be absent because nobody needs it. `+=` marks outputs that are
// accumulated into (weight gradients, state). Letters: B images, C channels or width, T tokens, N
// patches, H heads, K inputs or classes.
#pragma once
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace vitrum {

// kQuickGelu: x sigmoid(1.702 x), as OpenAI's CLIP has it; kSilu: x sigmoid(x).
enum class Act : uint8_t { kNone, kGelu, kGeluTanh, kRelu, kQuickGelu, kSilu, kSigmoid };
// Of kQuickGelu and kSilu, x sigmoid(beta x).
constexpr float sigmoid_beta(Act act) { return act == Act::kQuickGelu ? 1.702f : 1.0f; }
enum class PatchOrder : uint8_t {
  kChannelFirst,
  kChannelLast
};  // (C, P, P) as a convolution, or (P, P, C)
enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW, kLion, kLamb, kMuon };
// How a row of K logits z is measured against its target t.
enum class LossKind : uint8_t {
  kCrossEntropy,  // -sum t log softmax(z / tau)
  kDivergence,    // sum exp(t) (t - log softmax(z / tau)), t being log-probabilities
  kBinary,        // the mean of -t log sigmoid(z) - (1 - t) log sigmoid(-z)
  kSquare,        // the mean of (z - t)^2
};
// Those with a softmax keep its statistics for the way back.
constexpr bool has_softmax(LossKind kind) {
  return kind == LossKind::kCrossEntropy || kind == LossKind::kDivergence;
}
struct LossForm {
  float smoothing = 0;  // t becomes (1 - s) t + s / K; not for kDivergence and kSquare
  LossKind kind = LossKind::kCrossEntropy;
  float tau = 1;    // temperature; only where there is a softmax
  float scale = 1;  // factor of the whole
};
// Some tokens of every image, others each time: the first `prefix` of all, and of the patches
// behind them the `kept` with the smallest draws. Or, `dropped`, all the others.
struct TokenChoice {
  int64_t prefix = 0, kept = 0;
  uint32_t site = 0;
  bool dropped = false;
  constexpr int64_t count(int64_t tokens) const {
    return dropped ? tokens - prefix - kept : prefix + kept;
  }
};

// In and Out name the operands in their order: io.in[Linear::kBias]. Functions of an op begin by
// naming its attributes, `const auto& [heads, drop, site] = op;`, or take NoAttributes<Add>: an
// attribute that is added breaks the build wherever it could be ignored.
template <class T>
requires std::is_empty_v<T>
using NoAttributes = T;

// Marks ops that are never differentiated: backward and update ops, metrics.
template <class T>
concept NoGradient = requires {
  typename T::NoGradientTag;
};
struct Final {
  using NoGradientTag = void;
};

// ---- forward ----
// (pixels (B, C, H, W) u8 or float, scale (C), shift (C)) -> pixels * scale + shift
struct Normalize {
  enum In { kPixels, kScale, kShift };
  enum Out { kY };
};
// (pixels (B, C, H, W) u8, mix (B, 6): partner, own, top, bottom, left, right) -> float pixels: in
// the box [top, bottom) x [left, right) the partner's, elsewhere own * pixel + (1 - own) * the
// partner's. Mixup has no box, CutMix own = 1.
struct Mix : Final {
  enum In { kPixels, kMix };
  enum Out { kY };
};
// What becomes of one image of a batch: shifted, mirrored, and a box of the result erased.
struct ImageRow {
  int32_t image = -1;           // which one; -1: none, all is black
  int32_t down = 0, right = 0;  // pixel (y, x) is (y + down, x + right) of it, black outside
  int32_t mirror = 0;           // not 0: left-right, after the shift
  int32_t top = 0, left = 0, height = 0, width = 0;  // the box; may be empty
  uint32_t colour = 0;                               // of the box, 8 bits a channel
  // Or of its noise: the place in a PhiloxStream (seed, stream, index) where it begins.
  uint32_t position = 0, stream = 0, seed_low = 0, seed_high = 0, index_low = 0, index_high = 0;
  uint32_t unused = 0;
};
// (images (N, C, H, W) u8, rows (B, 16) i32: an ImageRow each, noise? (C, 4096) u8) -> (B, C, H, W)
// u8. With noise, a channel's box takes 16 bits of the stream a pixel, by rows, the low half of a
// word first and every channel beginning with a word; the upper 12 of them choose the byte.
struct TakeImages : Final {
  enum In { kImages, kRows, kNoise };
  enum Out { kY };
};
struct Patchify {  // (image (B, C, H, W), scale? (C), shift? (C)) -> (B, N, C * P * P)
  enum In { kImage, kScale, kShift };
  enum Out { kY };
  int64_t patch_h = 0, patch_w = 0;
  PatchOrder order = PatchOrder::kChannelFirst;
};
struct Linear {  // (x (.., K), w (C, K), bias? (C), rng?) -> dropout(act(x w^T + bias)) [, saved]
  enum In { kX, kWeight, kBias, kRng };
  enum Out { kY, kSaved };
  Act act = Act::kNone;  // saved: the value before `act`; for ReLU nothing, its output says enough
  float drop = 0;
  uint32_t site = 0;
};
// (x (.., K), w (C, K), bias? (C)) -> act(x' w'^T + bias), where x' and w' are x and w rounded to
// eight bits row by row, as core/eight_bits.h says. With a scale, x is e4m3 already and stands for
// x * scale, and rows of w are rounded as core/e4m3.h says. Takes the place of a Linear in
// inference.
struct QLinear : Final {
  enum In { kX, kWeight, kBias };
  enum Out { kY };
  Act act = Act::kNone;
  float scale = 0;  // 0: int8
};
// (x) -> e4m3 (core/e4m3.h): x / scale, a power of two, rounded
struct ToE4M3 : Final {
  enum In { kX };
  enum Out { kY };
  float scale = 1;
};
struct Activation {  // (x) -> act(x)
  enum In { kX };
  enum Out { kY };
  Act act = Act::kGelu;
};
struct LayerNorm {  // (x (.., C), w (C), bias? (C)) -> y [, mean (rows), rstd (rows)]
  enum In { kX, kWeight, kBias };
  enum Out { kY, kMean, kRstd };
  float eps = 1e-6f;
};
struct AddLayerNorm {  // (a, b, w, bias?) -> a + b, layer_norm(a + b) [, mean, rstd]
  enum In { kA, kB, kWeight, kBias };
  enum Out { kSum, kY, kMean, kRstd };
  float eps = 1e-6f;
};
// (qkv (B, T, 3C) in the order q, k, v, each (H, D), rng?, bias? (H, T, T), mask? (W, T, T)) ->
// (B, T, C) [, lse (B, H, T)]. bias and mask are added to the scaled scores; item b of the batch
// has mask b % W.
struct Attention {
  enum In { kQkv, kRng, kBias, kMask };
  enum Out { kY, kLse };
  int64_t heads = 1;
  float drop = 0;  // on the attention weights
  uint32_t site = 0;
};
// (Attention's inputs, never with rng) -> f32 (B, H, T, T): its weights, not dropped; a branch
// beside it for who wants to see them.
struct AttentionProbs : Final {
  enum In { kQkv, kRng, kBias, kMask };
  enum Out { kProbs };
  int64_t heads = 1;
};
// (Attention's inputs, never with rng) -> (B, T, C): its products with queries, keys, values and
// weights rounded to eight bits, as core/eight_bits.h says. Takes the place of an Attention in
// inference.
struct QAttention : Final {
  enum In { kQkv, kRng, kBias, kMask };
  enum Out { kY };
  int64_t heads = 1;
};
// (table ((2 h - 1) (2 w - 1) [+ 3], H)) -> (H, T, T), T = prefix + h w: for query t and key u of a
// window the row of their distance, (yt - yu + h - 1) (2 w - 1) + xt - xu + w - 1. Where tokens
// stand before the window's, the last three rows are those of such a query, such a key, and both.
struct RelativeBias {
  enum In { kTable };
  enum Out { kBias };
  int64_t window_h = 1, window_w = 1, prefix = 0;
};
// (qkv (B, T, 3C) as Attention takes it, table f32 (T - prefix, D): of a token the cosines of D / 2
// angles, then their sines) -> qkv, the pairs of values of q and k in every head turned by these
// angles, from token `prefix` on: rotary positions. v stays. Its own gradient, the other way round.
struct Rotate {
  enum In { kQkv, kTable };
  enum Out { kY };
  int64_t heads = 1, prefix = 0;
  bool halves = false;   // pair i is values i and i + D / 2, not 2 i and 2 i + 1
  bool inverse = false;  // by the negative angles
};
// (x (.., 2 C)) -> act(first half) * second half, (.., C): SwiGLU where act is SiLU
struct Gate {
  enum In { kX };
  enum Out { kY };
  Act act = Act::kSilu;
};
// (x, images of `tokens` tokens of `width` values each) -> images of from.size() tokens: token i is
// x's token from[i], or zeros where that is -1. No token is taken twice, so the gradient is such a
// node too. Windows, their reverse and the merging of neighbours are all this.
struct GatherTokens {
  enum In { kX };
  enum Out { kY };
  int64_t tokens = 1, width = 1;
  std::vector<int32_t> from;
};
// (a, b) -> a + b
struct Add {
  enum In { kA, kB };
  enum Out { kY };
};
// (x (.., C), gamma (C)) -> x * gamma: LayerScale
struct ChannelScale {
  enum In { kX, kGamma };
  enum Out { kY };
};
struct Dropout {  // (x, rng) -> x / keep where kept, else 0
  enum In { kX, kRng };
  enum Out { kY };
  float drop = 0;
  uint32_t site = 0;
};
struct DropPath {  // (x (B, ..), rng) -> whole samples kept (and divided by keep) or zeroed:
                   // stochastic depth
  enum In { kX, kRng };
  enum Out { kY };
  float drop = 0;
  uint32_t site = 0;
};
// (x (B, T, C), rng) -> (B, n, C): the chosen tokens of each image, in their order [, += (C): the
// sum of all that were not chosen]. Patch dropout; what a masked autoencoder sees, and what it is
// asked.
struct KeepTokens {
  enum In { kX, kRng };
  enum Out { kY, kRest };
  TokenChoice choice;
};
// (x (B, n, C), rng, fill? (1, 1, C)) -> (B, T, C): the chosen tokens back in their places, and
// `fill`, or zeros, in those of the others. Each is the other's gradient.
struct PlaceTokens {
  enum In { kX, kRng, kFill };
  enum Out { kY };
  TokenChoice choice;
};
// (x (B, N, C), pos? (1, T, C), prefix tokens (1, n, C) ...) -> [prefix; x] + pos, (B, T, C)
struct Tokens {
  enum In { kX, kPos, kPrefix };  // the first of them
  enum Out { kY };
};
struct Pool {  // (x (B, T, C) or (B, H, W, C), T = H W) -> (B, C)
  enum In { kX };
  enum Out { kY };
  int64_t first = 0, count = 1;  // mean of tokens [first, first + count); one token is a plain copy
};
// (kv (B, T, 2C) in the order k, v, each (H, D), q (1, 1, C)) -> (B, C): attention of one query,
// the same for every image, which takes the place of a pooled token
struct AttendPool {
  enum In { kKv, kQ };
  enum Out { kY };
  int64_t heads = 1;
};
// (table (.., C), ids i32 (..)) -> (.., C): the rows of the table with these numbers, counted over
// all of its other dimensions; each is one of them. Words of a vocabulary, the last token of a
// text.
struct Lookup : Final {
  enum In { kTable, kIds };
  enum Out { kY };
};
// Images are channels last, (B, H, W, C); windows reach `padding` pixels of zeros (MaxPool: of
// nothing) over each edge.
struct Conv2d {  // (x, w (O, C, K, K), and of a FrozenBatchNorm behind it: w?, bias?, mean?, var?,
                 // skip?) -> (B, H', W', O)
  enum In { kX, kWeight, kNormWeight, kNormBias, kMean, kVar, kSkip };
  enum Out { kY };
  int64_t stride = 1, padding = 0;
  float eps = 1e-5f;
  Act act = Act::kNone;
};
struct MaxPool {  // (x) -> (B, H', W', C)
  enum In { kX };
  enum Out { kY };
  int64_t kernel = 3, stride = 2, padding = 1;
};
// (x, w (C, 1, K, K), bias? (C)) -> (B, H', W', C): every channel has a window of its own
struct DepthwiseConv {
  enum In { kX, kWeight, kBias };
  enum Out { kY };
  int64_t padding = 0;
};
// (x (B, .., C), w (C), bias (C)) -> x (1 + w n) + bias [, length (B, C)]. length is that of a
// channel of an image, and n it divided by (its mean over the image's channels + eps).
struct ResponseNorm {
  enum In { kX, kWeight, kBias };
  enum Out { kY, kLength };
  float eps = 1e-6f;
};
// (x (.., P C) of `parts` P, each (H, D), scale? (H)) -> the heads of the first `unit` parts
// divided by their lengths (at least 1e-12); those of the first part, where there is a scale, also
// times sqrt(D) exp(min(scale, ln 100)): attention then has the cosine of q and k, times that, as
// scores.
struct UnitHeads {
  enum In { kX, kScale };
  enum Out { kY };
  int64_t heads = 1, parts = 3, unit = 2;
};
// (x (B, .., C), w (C), bias (C), weight? (B), skip?) -> act(norm(x) + skip) [, mean (C), var (C)]
// by the statistics of the batch, samples of weight 0 not counted; var is the biased one. act:
// none or ReLU.
struct BatchNorm {
  enum In { kX, kWeight, kBias, kSampleWeight, kSkip };
  enum Out { kY, kMean, kVar };
  float eps = 1e-5f;
  Act act = Act::kNone;
};
// (x, w, bias, mean, var, skip?) -> act(norm(x) + skip) by given statistics: batch norm in
// inference
struct FrozenBatchNorm : Final {
  enum In { kX, kWeight, kBias, kMean, kVar, kSkip };
  enum Out { kY };
  float eps = 1e-5f;
  Act act = Act::kNone;
};
// (mean, var, weight?) of a BatchNorm over `samples` of `positions` rows each -> running mean and
// unbiased variance, moved by `momentum` towards them
struct RunningStats : Final {
  enum In { kMean, kVar, kSampleWeight };
  enum Out { kRunningMean, kRunningVar };
  float momentum = 0.1f;
  int64_t samples = 0, positions = 1;
};
// (logits (B, K), target i32 (B) or float (B, K), weight (B)) -> sum_b weight * loss_b [, lse (B):
// of z / tau, where there is a softmax]. K is all that an image has, also where logits have a rank
// above two.
struct CrossEntropy {
  enum In { kLogits, kTarget, kSampleWeight };
  enum Out { kLoss, kLse };
  LossForm form = {};
};
// (x (B, K)) -> i32 (B): where the largest is; the lowest on ties
struct Argmax : Final {
  enum In { kX };
  enum Out { kY };
};
struct LogSoftmax : Final {  // (x (B, K)) -> log softmax(x / tau)
  enum In { kX };
  enum Out { kY };
  float tau = 1;
};
// (loss, logits?, target?, weight) -> += f64 (3): loss, correct, images of weight > 0. Without
// logits and target nothing is correct.
struct TrainMetrics : Final {
  enum In { kLoss, kLogits, kTarget, kSampleWeight };
  enum Out { kSums };
};

// ---- backward ----
// (dy, x, w, saved?, rng?) -> dx, += dw, += dbias. saved: see Linear; y for ReLU
struct LinearBwd : Final {
  enum In { kDy, kX, kWeight, kSaved, kRng };
  enum Out { kDx, kDweight, kDbias };
  Act act = Act::kNone;
  float drop = 0;
  uint32_t site = 0;
};
struct ActivationBwd : Final {  // (dy, x) -> dx
  enum In { kDy, kX };
  enum Out { kDx };
  Act act = Act::kGelu;
};
// (dy, x, w, mean, rstd, dskip?) -> dx (+ dskip), += dw, += dbias
struct LayerNormBwd : Final {
  enum In { kDy, kX, kWeight, kMean, kRstd, kDskip };
  enum Out { kDx, kDweight, kDbias };
};
struct AttentionBwd : Final {  // (dy, qkv, y, lse, rng?, bias?, mask?) -> dqkv, dbias
  enum In { kDy, kQkv, kY, kLse, kRng, kBias, kMask };
  enum Out { kDqkv, kDbias };
  int64_t heads = 1;
  float drop = 0;
  uint32_t site = 0;
};
struct RelativeBiasBwd : Final {  // (dy (H, T, T)) -> += dtable
  enum In { kDy };
  enum Out { kDtable };
  int64_t window_h = 1, window_w = 1, prefix = 0;
};
struct GateBwd : Final {  // (dy (.., C), x (.., 2 C)) -> dx
  enum In { kDy, kX };
  enum Out { kDx };
  Act act = Act::kSilu;
};
// () and, updated in place: x, of which elements [first, first + count) become zero. The gradient
// of what a parameter holds at zero.
struct ClearRange : Final {
  enum Out { kX };
  int64_t first = 0, count = 0;
};
struct AttentionProbsGrad : Final {  // (dy, qkv) -> f32 (B, H, T, T): dy v^T, the gradient of
                                     // Attention's weights
  enum In { kDy, kQkv };
  enum Out { kDprobs };
  int64_t heads = 1;
};
// (dy, x, gamma) -> dx, += dgamma
struct ChannelScaleBwd : Final {
  enum In { kDy, kX, kGamma };
  enum Out { kDx, kDgamma };
};
// (dy) -> dx, += dpos, += dprefix ...
struct TokensBwd : Final {
  enum In { kDy };
  enum Out { kDx, kDpos, kDprefix };  // the first of them
  std::vector<int64_t> prefix;        // how many tokens each has
};
struct PoolBwd : Final {  // (dy (B, C)) -> dx (B, T, C)
  enum In { kDy };
  enum Out { kDx };
  int64_t first = 0, count = 1;
};
struct AttendPoolBwd : Final {  // (dy (B, C), kv, q) -> dkv, dq
  enum In { kDy, kKv, kQ };
  enum Out { kDkv, kDq };
  int64_t heads = 1;
};
struct Conv2dBwd : Final {  // (dy, x, w) -> dx, += dw
  enum In { kDy, kX, kWeight };
  enum Out { kDx, kDweight };
  int64_t stride = 1, padding = 0;
};
struct DepthwiseConvBwd : Final {  // (dy, x, w) -> dx, += dw, += dbias
  enum In { kDy, kX, kWeight };
  enum Out { kDx, kDweight, kDbias };
  int64_t padding = 0;
};
struct ResponseNormBwd : Final {  // (dy, x, w, length) -> dx, += dw, += dbias
  enum In { kDy, kX, kWeight, kLength };
  enum Out { kDx, kDweight, kDbias };
  float eps = 1e-6f;
};
struct UnitHeadsBwd : Final {  // (dy, x, scale?) -> dx, += dscale
  enum In { kDy, kX, kScale };
  enum Out { kDx, kDscale };
  int64_t heads = 1, parts = 3, unit = 2;
};
struct MaxPoolBwd : Final {  // (dy, x) -> dx: to the first of equal values
  enum In { kDy, kX };
  enum Out { kDx };
  int64_t kernel = 3, stride = 2, padding = 1;
};
// (dy, x, w, mean, var, y? (with ReLU), weight?) -> dx, += dw, += dbias, dskip (with ReLU)
struct BatchNormBwd : Final {
  enum In { kDy, kX, kWeight, kMean, kVar, kY, kSampleWeight };
  enum Out { kDx, kDweight, kDbias, kDskip };
  float eps = 1e-5f;
  Act act = Act::kNone;
};
struct CrossEntropyBwd : Final {  // (logits, target, weight, lse?) -> dlogits
  enum In { kLogits, kTarget, kSampleWeight, kLse };
  enum Out { kDlogits };
  LossForm form = {};
};

// ---- update: whole arenas at once, every tensor a segment ----
// (gradients, or sums of their squares) -> (2): global norm, factor min(1, max_norm / (norm +
// 1e-6))
struct ClipScale : Final {
  enum In { kGradients };
  enum Out { kNorms };
  float max_norm = 0;    // 0: no clipping, factor 1
  bool of_sums = false;  // the input is BlockSquares' result, f64: added in order
};
struct Segment {
  int64_t offset = 0, size = 0;  // elements
  float lr_scale = 1, decay = 0;
};
// (gradients) -> f64 (blocks): the sum of squares of every block of kBlock elements of each
// segment, whose last one may be shorter. A sum does not depend on who else computes others.
struct BlockSquares : Final {
  enum In { kGradients };
  enum Out { kSums };
  static constexpr int64_t kBlock = 16 * 1024;
  std::vector<Segment> segments;
};
// Gradients on their way up a binary tree: (left siblings, the lowest first ..) and, updated in
// place, gradients: sum = left_n + (.. + (left_0 + gradients)), and the gradients are cleared.
// Where there is no sum, the gradients become it.
struct Fold : Final {
  enum In { kLeft };  // the first of them; there may be none
  enum Out { kGradients, kSum };
};
// (hyper (4): lr, 1 - beta1^t, 1 - beta2^t, ema decay; clip (2)) and, updated in place:
// gradients (read, then cleared), parameters, first? and second? moments, ema?, compute copy?
// (bf16)
struct OptimizerStep : Final {
  enum In { kHyper, kClip };
  enum Out { kGradients, kParameters, kMoment1, kMoment2, kEma, kCopy };
  OptimizerKind kind = OptimizerKind::kAdamW;  // kMuon: descent along what Orthogonalize left
  double beta1 = 0.9, beta2 = 0.999;           // beta1 is the momentum of SGD
  float eps = 1e-8f;
  bool nesterov = false;  // of SGD
  std::vector<Segment> segments;
};
struct MatrixSegment {
  int64_t offset = 0, rows = 0, columns = 0;  // elements of an arena, row-major
  float scale = 1;
};
// Muon's direction, (clip (2)) and, updated in place: gradients, momentum. The momentum takes in
// the clipped gradient; the gradient becomes scale * U S V^T, where U .. V^T are those of the
// (Nesterov) momentum and S is near 1: five steps of the quintic Newton-Schulz iteration.
struct Orthogonalize : Final {
  enum In { kClip };
  enum Out { kGradients, kMomentum };
  double momentum = 0.95;
  bool nesterov = true;
  bool bf16 = false;  // operands of the iteration's products may be rounded to bf16
  std::vector<MatrixSegment> matrices;
};
// SAM's way up, (norms (2): ClipScale's) and, updated in place: gradients (read, then cleared),
// parameters += rho * gradient / (norm + 1e-12), compute copy? (bf16)
struct Perturb : Final {
  enum In { kNorms };
  enum Out { kGradients, kParameters, kCopy };
  float rho = 0;
  std::vector<Segment> segments;
};
// (x) -> x of the same type, or f32 rounded to bf16: state put aside and brought back
struct Copy : Final {
  enum In { kX };
  enum Out { kY };
};

using Op =
    std::variant<Normalize, Mix, TakeImages, Patchify, Linear, Activation, LayerNorm, AddLayerNorm,
                 Attention, RelativeBias, GatherTokens, Add, ChannelScale, Dropout, DropPath,
                 Tokens, Pool, Conv2d, MaxPool, BatchNorm, FrozenBatchNorm, RunningStats,
                 CrossEntropy, Argmax, LogSoftmax, TrainMetrics, LinearBwd, ActivationBwd,
                 LayerNormBwd, AttentionBwd, RelativeBiasBwd, ChannelScaleBwd, TokensBwd, PoolBwd,
                 Conv2dBwd, MaxPoolBwd, BatchNormBwd, CrossEntropyBwd, ClipScale, OptimizerStep,
                 Orthogonalize, Perturb, Copy, AttentionProbs, AttentionProbsGrad, KeepTokens,
                 PlaceTokens, BlockSquares, Fold, Rotate, Gate, GateBwd, ClearRange, AttendPool,
                 AttendPoolBwd, Lookup, DepthwiseConv, DepthwiseConvBwd, ResponseNorm,
                 ResponseNormBwd, UnitHeads, UnitHeadsBwd, QLinear, QAttention, ToE4M3>;

std::string_view name_of(const Op& op);

}  // namespace vitrum
