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
#include <variant>
#include <vector>

namespace vitrum {

enum class Act : uint8_t { kNone, kGelu, kGeluTanh, kRelu };
enum class PatchOrder : uint8_t {
  kChannelFirst,
  kChannelLast
};  // (C, P, P) as a convolution, or (P, P, C)
enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW };
// How a row of K logits z is measured against its target t.
enum class LossKind : uint8_t {
  kCrossEntropy,  // -sum t log softmax(z / tau)
  kDivergence,    // sum exp(t) (t - log softmax(z / tau)), t being log-probabilities
  kBinary,        // the mean of -t log sigmoid(z) - (1 - t) log sigmoid(-z)
};
struct LossForm {
  float smoothing = 0;  // t becomes (1 - s) t + s / K; not for kDivergence
  LossKind kind = LossKind::kCrossEntropy;
  float tau = 1;    // temperature; not for kBinary
  float scale = 1;  // factor of the whole
};

// Marks ops that are never differentiated: backward and update ops, metrics.
template <class T>
concept NoGradient = requires {
  typename T::NoGradientTag;
};
struct Final {
  using NoGradientTag = void;
};

// ---- forward ----
struct Normalize {
};  // (pixels (B, C, H, W) u8 or float, scale (C), shift (C)) -> pixels * scale + shift
struct Patchify {  // (image (B, C, H, W), scale? (C), shift? (C)) -> (B, N, C * P * P)
  int64_t patch_h = 0, patch_w = 0;
  PatchOrder order = PatchOrder::kChannelFirst;
};
struct Linear {  // (x (.., K), w (C, K), bias? (C), rng?) -> dropout(act(x w^T + bias)) [, saved]
  Act act = Act::kNone;  // saved: the value before `act`; for ReLU nothing, its output says enough
  float drop = 0;
  uint32_t site = 0;
};
struct Activation {  // (x) -> act(x)
  Act act = Act::kGelu;
};
struct LayerNorm {  // (x (.., C), w (C), bias? (C)) -> y [, mean (rows), rstd (rows)]
  float eps = 1e-6f;
};
struct AddLayerNorm {  // (a, b, w, bias?) -> a + b, layer_norm(a + b) [, mean, rstd]
  float eps = 1e-6f;
};
struct Attention {  // (qkv (B, T, 3C) in the order q, k, v, each (H, D), rng?) -> (B, T, C) [, lse
                    // (B, H, T)]
  int64_t heads = 1;
  float drop = 0;  // on the attention weights
  uint32_t site = 0;
};
struct Add {};           // (a, b) -> a + b
struct ChannelScale {};  // (x (.., C), gamma (C)) -> x * gamma: LayerScale
struct Dropout {         // (x, rng) -> x / keep where kept, else 0
  float drop = 0;
  uint32_t site = 0;
};
struct DropPath {  // (x (B, ..), rng) -> whole samples kept (and divided by keep) or zeroed:
                   // stochastic depth
  float drop = 0;
  uint32_t site = 0;
};
struct Tokens {
};  // (x (B, N, C), pos? (1, T, C), prefix tokens (1, 1, C) ...) -> [prefix; x] + pos, (B, T, C)
struct Pool {                    // (x (B, T, C)) -> (B, C)
  int64_t first = 0, count = 1;  // mean of tokens [first, first + count); one token is a plain copy
};
struct CrossEntropy {  // (logits (B, K), target i32 (B) or float (B, K), weight (B)) -> sum_b
                       // weight * loss_b [, lse (B): of z / tau, kBinary has none]
  LossForm form = {};
};
struct Argmax : Final {};    // (x (B, K)) -> i32 (B): where the largest is; the lowest on ties
struct LogSoftmax : Final {  // (x (B, K)) -> log softmax(x / tau)
  float tau = 1;
};
struct TrainMetrics : Final {
};  // (loss, logits, target, weight) -> += f64 (3): loss, correct, images of weight > 0

// ---- backward ----
struct LinearBwd
    : Final {  // (dy, x, w, saved?, rng?) -> dx, += dw, += dbias. saved: see Linear; y for ReLU
  Act act = Act::kNone;
  float drop = 0;
  uint32_t site = 0;
};
struct ActivationBwd : Final {  // (dy, x) -> dx
  Act act = Act::kGelu;
};
struct LayerNormBwd : Final {};  // (dy, x, w, mean, rstd, dskip?) -> dx (+ dskip), += dw, += dbias
struct AttentionBwd : Final {    // (dy, qkv, y, lse, rng?) -> dqkv
  int64_t heads = 1;
  float drop = 0;
  uint32_t site = 0;
};
struct ChannelScaleBwd : Final {};  // (dy, x, gamma) -> dx, += dgamma
struct TokensBwd : Final {};        // (dy) -> dx, += dpos, += dprefix ...
struct PoolBwd : Final {            // (dy (B, C)) -> dx (B, T, C)
  int64_t first = 0, count = 1;
};
struct CrossEntropyBwd : Final {  // (logits, target, weight, lse?) -> dlogits
  LossForm form = {};
};

// ---- update: whole arenas at once, every tensor a segment ----
struct ClipScale
    : Final {          // (gradients) -> (2): global norm, factor min(1, max_norm / (norm + 1e-6))
  float max_norm = 0;  // 0: no clipping, factor 1
};
struct Segment {
  int64_t offset = 0, size = 0;  // elements
  float lr_scale = 1, decay = 0;
};
// (hyper (4): lr, 1 - beta1^t, 1 - beta2^t, ema decay; clip (2)) and, updated in place:
// gradients (read, then cleared), parameters, first? and second? moments, ema?, compute copy?
// (bf16)
struct OptimizerStep : Final {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9, beta2 = 0.999;  // beta1 is the momentum of SGD
  float eps = 1e-8f;
  std::vector<Segment> segments;
};

using Op =
    std::variant<Normalize, Patchify, Linear, Activation, LayerNorm, AddLayerNorm, Attention, Add,
                 ChannelScale, Dropout, DropPath, Tokens, Pool, CrossEntropy, Argmax, LogSoftmax,
                 TrainMetrics, LinearBwd, ActivationBwd, LayerNormBwd, AttentionBwd,
                 ChannelScaleBwd, TokensBwd, PoolBwd, CrossEntropyBwd, ClipScale, OptimizerStep>;

std::string_view name_of(const Op& op);

}  // namespace vitrum
