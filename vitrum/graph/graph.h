// Trace-side vocabulary: a model function runs once against these types and leaves a Graph behind.
#pragma once
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"
#include "vitrum/graph/init.h"
#include "vitrum/graph/op.h"

namespace vitrum {

using ValueId = int32_t;
inline constexpr ValueId kAbsent = -1;

// Who owns a value's memory: the caller writes inputs; constants are uploaded once; parameters,
// their gradients, state and arenas live in the ParamStore; temporaries in the program's planned
// arena.
enum class Role : uint8_t { kInput, kConst, kParam, kGrad, kState, kArena, kTemp };

// The arenas of a ParamStore, one element per parameter element at the same offset in each.
enum class Arena : uint8_t { kMaster, kCompute, kGrad, kMoment1, kMoment2, kEma, kSamBackup };
inline constexpr int kArenas = 7;

struct ValueInfo {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  Role role = Role::kTemp;
  bool exact = false;  // statistics, losses: stay f32 when activations become bf16
  int param = -1;      // index into Graph::params, for kParam and kGrad
  Arena arena = Arena::kMaster;
  std::vector<float> data = {};  // kConst
};

struct Node {
  Op op;
  std::vector<ValueId> in, out;  // kAbsent where optional and not there
  std::string name;
  int region = -1;  // recompute unit; -1 = always kept
};

// A run of elements of a tensor.
struct ElementRange {
  int64_t first = 0, count = 0;
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  bool decay = true;      // false for biases, norms, tokens and positions
  bool trainable = true;  // false: frozen, no gradient is computed
  // Written by the model while it trains, as running statistics are: saved and loaded with the
  // weights, but not optimised, averaged or counted.
  bool buffer = false;
  // Elements that the model does not have, as the biases of keys in BEiT and its heirs: always
  // zero, in no file, not counted, and never learned (their gradients are cleared).
  ElementRange held = {};

  int64_t counted() const { return shape.numel() - held.count; }
  // How it starts.
  void fill(std::span<float> values, uint64_t seed) const;
};

// Whether a layer or parameter is part of a repeated block: "blocks.3.attn.qkv", not "head".
bool in_block(std::string_view path);

// Low-rank adapters: linear() adds one beside each layer of a block whose name ends with a target.
struct LoraSpec {
  int64_t rank = 0;                       // 0: none
  float alpha = 0;                        // the adapter's output counts alpha / rank
  float drop = 0;                         // of its input
  std::vector<std::string> targets = {};  // "qkv", "mlp.fc1", ...
  float scale() const { return alpha / static_cast<float>(rank); }
  bool adapts(std::string_view path) const;
  bool operator==(const LoraSpec&) const = default;
};

enum class Mode : uint8_t { kInference, kTraining };

class Graph;

// Handle to a symbolic tensor. Cheap to copy; knows its shape, has no data.
class Value {
 public:
  Value() = default;
  Value(Graph* graph, ValueId id) : graph_(graph), id_(id) {}
  explicit operator bool() const { return id_ != kAbsent; }
  Graph& graph() const { return *graph_; }
  ValueId id() const { return id_; }
  const Shape& shape() const;
  int64_t dim(int i) const { return shape()[i]; }

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = kAbsent;
};

// Append-only while tracing; passes rewrite it in place.
class Graph {
 public:
  explicit Graph(Mode mode = Mode::kInference) : mode(mode) {}
  Graph(const Graph&) = delete;  // Values point at their graph
  Graph& operator=(const Graph&) = delete;

  Value add_value(ValueInfo info);
  Value input(std::string name, Shape shape, DType dtype = DType::kF32, bool exact = false);
  Value constant(std::string name, Shape shape, std::vector<float> data);
  Value param(ParamSpec spec);
  Value state(std::string name, Shape shape, DType dtype);
  Value arena(Arena arena, int64_t size, DType dtype);
  // Appends a node with one fresh temporary per shape and returns the first.
  Value emit(std::string name, Op op, std::vector<Value> in, std::vector<Shape> out);

  Value rng();  // the RandomState input, made on first use
  uint32_t next_site() { return sites_++; }

  ValueInfo& info(Value v) { return values[static_cast<size_t>(v.id())]; }
  const ValueInfo& info(Value v) const { return values[static_cast<size_t>(v.id())]; }

  const Mode mode;
  std::deque<ValueInfo> values;  // a deque: references to shapes survive growth
  std::vector<Node> nodes;
  std::vector<ParamSpec> params;
  std::vector<std::pair<std::string, ValueId>> modules;  // what each returns: see module_output()
  int region = -1, regions = 0;                          // see RecomputeUnit
  // (B), set before tracing where batches may be padded: samples of weight 0 are, and statistics
  // over the batch leave them out.
  Value sample_weight;
  LoraSpec lora;

 private:
  Value rng_;
  uint32_t sites_ = 0;
};

inline const Shape& Value::shape() const { return graph_->info(*this).shape; }

// Everything recorded in its lifetime is one unit of Recompute::kBlock.
class RecomputeUnit {
 public:
  explicit RecomputeUnit(Graph& g) : graph_(g) { graph_.region = graph_.regions++; }
  ~RecomputeUnit() { graph_.region = -1; }
  RecomputeUnit(const RecomputeUnit&) = delete;

 private:
  Graph& graph_;
};

// A name prefix and the graph being recorded: "blocks.3.attn" / "qkv" is "blocks.3.attn.qkv".
class Scope {
 public:
  explicit Scope(Graph& g, std::string path = {}) : graph_(&g), path_(std::move(path)) {}
  Scope operator/(const std::string& leaf) const {
    return Scope(*graph_, path_.empty() ? leaf : path_ + "." + leaf);
  }
  Scope operator/(int64_t i) const { return *this / std::to_string(i); }
  Graph& graph() const { return *graph_; }
  const std::string& path() const { return path_; }
  // The one place where a parameter is stated: its dotted name, shape, start value, and whether it
  // decays.
  Value param(const std::string& leaf, Shape shape, Init init, bool decay) const;
  Value buffer(const std::string& leaf, Shape shape, Init init) const;  // see ParamSpec::buffer

 private:
  Graph* graph_;
  std::string path_;
};

}  // namespace vitrum
