// What model files call. Each function records one op and returns its symbolic result.
#pragma once
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

struct LinearOptions {
  bool bias = true;
  Init weight_init = Init::normal(0.02f);
  Init bias_init = Init::zeros();
};
Value linear(Scope s, Value x, int64_t out, const LinearOptions& options = {});

Value layer_norm(Scope s, Value x, float eps, bool bias = true);
Value activation(Value x, Act act);
Value attention(Scope s, Value qkv, int64_t heads,
                float drop = 0);  // drop: on the attention weights
Value operator+(Value a, Value b);
Value layer_scale(Scope s, Value x, float start);
Value dropout(Scope s, Value x, float drop);    // the identity unless training
Value drop_path(Scope s, Value x, float drop);  // likewise

Value normalize(Value pixels, const std::vector<float>& mean, const std::vector<float>& std);
Value patchify(Value image, int64_t patch_h, int64_t patch_w, PatchOrder order);
Value add_tokens(Value x, const std::vector<Value>& prefix, Value positions);
Value take_token(Value x, int64_t index);
Value mean_tokens(Value x, int64_t first);  // mean of tokens [first, T)
Value mean_tokens(Value x, int64_t first, int64_t count);

// Their mean; kept in f32 where both are.
Value average(Value a, Value b);

Value cross_entropy(Value logits, Value target, Value weight, float smoothing = 0);
Value cross_entropy(Value logits, Value target, Value weight, const LossForm& form);
Value argmax(Value x);                  // (B, K) -> i32 (B)
Value log_softmax(Value x, float tau);  // of x / tau
void train_metrics(Value loss, Value logits, Value target, Value weight, Value totals);

}  // namespace vitrum
