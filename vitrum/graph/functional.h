// What model files call. Each function records one op and returns its symbolic result.
#pragma once
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

struct LinearOptions {
  bool bias = true;
  Init weight_init = Init::normal(0.02f);
  Init bias_init = Init::zeros();
  ElementRange held = {};  // of the bias: see ParamSpec::held
};
Value linear(Scope s, Value x, int64_t out, const LinearOptions& options = {});

// start: of the weight.
Value layer_norm(Scope s, Value x, float eps, bool bias = true, float start = 1);
Value activation(Value x, Act act);
Value attention(Scope s, Value qkv, int64_t heads,
                float drop = 0);  // drop: on the attention weights
// With what is added to the scores: bias (H, T, T), and mask (W, T, T), which may be absent.
Value attention(Scope s, Value qkv, int64_t heads, float drop, Value bias, Value mask);
// The tokens of kv (B, T, 2C) seen by one query (1, 1, C): (B, C).
Value attend_pool(Scope s, Value kv, Value query, int64_t heads);
// A parameter of (1, 1, C) as a value that ops compute with.
Value as_token(Scope s, Value param);
// Rows of a table by number: ids i32 (..) -> (.., C); a row is one of all of its dimensions but C.
Value lookup(Scope s, Value table, Value ids);
// A learned bias by distance inside a window: (H, T, T), T = prefix + window_h * window_w; and its
// parameter.
Value relative_bias(Scope s, Value table, int64_t window_h, int64_t window_w, int64_t prefix = 0);
Value relative_bias_table(Scope s, int64_t window_h, int64_t window_w, int64_t heads,
                          int64_t prefix = 0);
// q and k turned by the angles of `table`, see Rotate.
Value rotate(Scope s, Value qkv, Value table, int64_t heads, int64_t prefix, bool halves);
Value gate(Value x, Act act);  // (.., 2 C) -> (.., C): act(first half) * second half
// The tokens of each image in another order, see GatherTokens: x (.., C), `tokens` rows an image.
Value gather_tokens(const std::string& name, Value x, int64_t tokens, std::vector<int32_t> from,
                    Shape shape);
Value operator+(Value a, Value b);
Value layer_scale(Scope s, Value x, float start);
Value dropout(Scope s, Value x, float drop);    // the identity unless training
Value drop_path(Scope s, Value x, float drop);  // likewise
// The first `prefix` tokens of each image and a share of 1 - drop of the others, at least one, by
// chance: (B, T, C) -> (B, T', C); likewise.
Value keep_tokens(Scope s, Value x, int64_t prefix, float drop);
// A choice of 1 - drop of so many patches, at least one, as timm and MAE count them: for several
// nodes that mean the same tokens, training or not.
TokenChoice choose_tokens(Graph& g, int64_t prefix, int64_t patches, float drop);
Value keep_tokens(Scope s, Value x, const TokenChoice& choice);  // see KeepTokens
// (B, n, C) -> (B, tokens, C), see PlaceTokens; fill may be absent.
Value place_tokens(Scope s, Value x, int64_t tokens, const TokenChoice& choice, Value fill);

// States that module `s` returns x, so that x can be tapped by the module's name.
Value module_output(Scope s, Value x);

Value normalize(Value pixels, const std::vector<float>& mean, const std::vector<float>& std);
Value mix_pixels(Value pixels, Value mix);  // see Mix
Value patchify(Value image, int64_t patch_h, int64_t patch_w, PatchOrder order);
// The same with the patches as pixels of an image: (B, C, H, W) -> (B, H', W', C * P * P).
Value patch_image(Value image, int64_t patch_h, int64_t patch_w);
Value add_tokens(Value x, const std::vector<Value>& prefix, Value positions);
Value take_token(Value x, int64_t index);
Value mean_tokens(Value x, int64_t first);  // mean of tokens [first, T)
Value mean_tokens(Value x, int64_t first, int64_t count);
Value side_by_side(Value a, Value b);  // (B, C), (B, C) -> (B, 2 C)

// Their mean; kept in f32 where both are.
Value average(Value a, Value b);

// Images, channels last.
Value channels_last(Value image);  // (B, C, H, W) -> (B, H, W, C)
struct WindowOptions {
  int64_t kernel = 3, stride = 1, padding = 1;
};
Value conv2d(Scope s, Value x, int64_t out, const WindowOptions& window);  // no bias
Value max_pool(Scope s, Value x, const WindowOptions& window);
// By the statistics of the batch in training (which move the running ones), by the running ones in
// inference.
Value batch_norm(Scope s, Value x, float eps = 1e-5f, float momentum = 0.1f);
Value mean_pixels(Value x);  // (B, H, W, C) -> (B, C)
// Each channel with a window of its own, as large as it can reach from the middle: H and W stay.
Value depthwise_conv(Scope s, Value x, int64_t kernel);
Value response_norm(Scope s, Value x, float eps = 1e-6f);  // see ResponseNorm
// q and k of qkv for cosine attention with a learned scale a head; see UnitHeads.
Value cosine_heads(Scope s, Value qkv, int64_t heads);

Value cross_entropy(Value logits, Value target, Value weight, float smoothing = 0);
Value cross_entropy(Value logits, Value target, Value weight, const LossForm& form);
Value argmax(Value x);                  // (B, K) -> i32 (B)
Value log_softmax(Value x, float tau);  // of x / tau
// logits and target may be absent.
void train_metrics(Value loss, Value logits, Value target, Value weight, Value totals);

}  // namespace vitrum
