// Passes over a traced graph, in the order they are meant to run:
// fuse -> differentiate -> quantize -> assign_dtypes -> drop_dead -> plan.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

// normalize + patchify; linear + activation + dropout; residual add + LayerNorm, also across
// blocks; convolution + batch norm (in inference) + residual add + ReLU. The values in `keep` are
// still computed afterwards; the others have the same bits either way.
void fuse(Graph& g, std::span<const Value> keep = {});

// What the backward pass computes again instead of keeping: nothing; what costs no matrix product
// (LayerNorm and activation outputs); or each block from its input. Gradients are the same bits
// under every policy.
enum class Recompute : uint8_t { kNone, kCheap, kBlock };

// Appends the backward pass of `loss`. Gradients of trainable parameters are accumulated into kGrad
// values.
void differentiate(Graph& g, Value loss, Recompute policy);

// Appends the backward pass of sum(seed * of) down to the values `wrt` and returns their gradients,
// in that order; parameters get none. `seed` has the shape of `of`.
std::vector<Value> differentiate(Graph& g, Value of, Value seed, std::span<const Value> wrt);

// Linear layers of blocks become QLinear, but those whose names `keeps` knows, adapters, and what
// does not hang on an input; attention behind one of them becomes QAttention. For inference;
// returns the names of the linear layers.
using KeepsFloat = std::function<bool(const std::string& layer)>;
std::vector<std::string> quantize(Graph& g, const KeepsFloat& keeps = {});

// The same for e4m3, one scale for a whole tensor of activations: ToE4M3 + QLinear where numbers
// can be bounded by the parameters alone (graph/bounds.h), whatever the images are; attention
// stays. `values` reads a parameter (null: only to learn which layers these are), `known` remembers
// scales by layer for the next graph.
using ParamValues = std::function<std::vector<float>(size_t param)>;
using ActivationScales = std::map<std::string, float>;
std::vector<std::string> quantize_e4m3(Graph& g, const ParamValues& values, ActivationScales& known,
                                       const KeepsFloat& keeps = {});

// Activations and the weights of linear layers become bf16 (compute = kBF16, and beside layers of
// eight bits kE4M3), or every float becomes f64; with kI8 all stays as it is. `keep_f32` values
// (logits) keep their precision, and so does a bias added to them.
void assign_dtypes(Graph& g, DType compute, std::span<const Value> keep_f32);

// Whether linear layers of bf16 rows read this value as their weights, and nothing else reads it.
bool only_bf16_weights(const Graph& g, ValueId id);

// A result that is no more than the column sums of an operand: the gradient of a plain linear
// layer's bias.
struct ColumnSums {
  ValueId of = kAbsent;
  size_t result = 0;
};
std::optional<ColumnSums> column_sums(const Node& node);

// Removes nodes whose results nobody reads, and marks unread outputs absent. `outputs` are read by
// the caller.
void drop_dead(Graph& g, std::span<const Value> outputs);

struct Plan {
  std::vector<int64_t> offset;  // by value id; -1 where the planner does not own the memory
  int64_t bytes = 0;            // the arena
  int64_t lower_bound = 0;      // most bytes alive at one moment: no plan can be smaller
  int64_t naive_bytes = 0;      // every temporary on its own
};
// joined[i]: nodes i and i + 1 are computed together, so they share all their operands' time; what
// only goes from one to the other gets no memory.
Plan plan_memory(const Graph& g, std::span<const Value> outputs, bool share = true,
                 const std::vector<bool>& joined = {});

}  // namespace vitrum
