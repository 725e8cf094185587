// What is behind translate(): the operands and nodes of ONNX, and one emit() an op. onnx_ops.cpp
// has what all of them use; layers, attention and images are in files of their own. Internal to
// export/.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/export/onnx_graph.h"
#include "vitrum/graph/graph.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// One function an op: without one, or without a refusal, an op of the closed set does not compile.
// A result is called after its node; what a node needs on the way is called node/Op.
class OnnxTranslator {
 public:
  OnnxTranslator(const Graph& g, Value result, const std::string& result_name, ParamStore& store,
                 OnnxGraph& out)
      : g_(g), result_(result.id()), result_name_(result_name), store_(store), out_(out) {}

  void run();

 private:
  using Names = std::vector<std::string>;
  using Ints = std::vector<int64_t>;
  using Attributes = std::vector<OnnxAttribute>;

  // ---- operands of the node at hand ----
  bool has(size_t i) const { return i < node_->in.size() && node_->in[i] != kAbsent; }
  const ValueInfo& info(size_t i) const { return g_.values[static_cast<size_t>(node_->in[i])]; }
  const Shape& shape(size_t i) const { return info(i).shape; }
  std::vector<float> data(size_t i) const;
  // The name of operand i; a parameter or constant comes into the file on its first use.
  const std::string& in(size_t i);
  // Whether operand i, an image, is (B, C, H, W) in the file: channels last is our own order, and
  // every runtime's convolutions want theirs.
  bool in_planes(size_t i) const { return has(i) && planes_.contains(node_->in[i]); }

  // ---- nodes ----
  std::string part(const char* op, const Names& in, const Attributes& attr = {});
  void last(const char* op, const Names& in, const Attributes& attr = {}, size_t output = 0);
  [[noreturn]] void refuse() const;
  [[noreturn]] void refuse_fused() const;

  // ---- images ----
  void emit(const NoAttributes<Normalize>&);
  void emit(const Patchify& op);
  void emit(const Conv2d& op);
  void emit(const DepthwiseConv& op);
  void emit(const MaxPool& op);
  void emit(const FrozenBatchNorm& op);
  struct Patches {
    Patchify op;
    std::string image;
    Shape shape;  // (B, C, H, W)
  };
  void emit_patch_embedding(const Patches& patches);
  Attributes window(int64_t kernel, int64_t stride, int64_t padding) const;

  // ---- layers ----
  void emit(const Linear& op);
  void emit(const QLinear& op);
  void emit(const Gate& op);
  void emit(const Activation& op);
  void emit(const LayerNorm& op);
  void emit(const AddLayerNorm& op);
  void emit(const ResponseNorm& op);
  std::string activated(const std::string& x, Act act);
  std::pair<std::string, std::string> activation_factors(const std::string& x, Act act);
  template <class Norm>
  void layer_norm(const Norm& op, const std::string& x);

  // ---- attention ----
  void emit(const RelativeBias& op);
  void emit(const Rotate& op);
  void emit(const UnitHeads& op);
  void emit(const Attention& op);
  void emit(const QAttention& op);
  void emit(const ToE4M3& op);
  void attention(int64_t heads);
  void emit(const AttendPool& op);
  // Cosines and signed sines of (T, 3, 1, D); prefix tokens and v have cosine 1 and sine 0.
  struct Angles {
    std::string cosines, sines;
  };
  const Angles& angles_of(const Rotate& op);
  std::string with_bias(const std::string& scores, int64_t heads);
  void gather_bias(int64_t h, int64_t w);

  // ---- tokens ----
  void emit(const NoAttributes<Add>&);
  void emit(const NoAttributes<ChannelScale>&);
  void emit(const NoAttributes<Tokens>&);
  void emit(const GatherTokens& op);
  void emit(const Pool& op);

  // ---- training alone ----
  void emit(const Dropout&) { refuse(); }
  void emit(const DropPath&) { refuse(); }
  void emit(const KeepTokens&) { refuse(); }
  void emit(const PlaceTokens&) { refuse(); }
  void emit(const CrossEntropy&) { refuse(); }
  void emit(const BatchNorm&) { refuse(); }
  template <NoGradient T>
  void emit(const T&) {
    refuse();
  }

  const Graph& g_;
  const ValueId result_;
  const std::string result_name_;
  ParamStore& store_;
  OnnxGraph& out_;
  const Node* node_ = nullptr;
  Names names_;  // of values by id; empty: not in the file yet
  std::map<ValueId, Patches> patchified_;
  std::map<ValueId, Angles> angles_;  // by Rotate's table
  std::set<ValueId> planes_;
};

// (rows, columns) -> (columns, rows)
std::vector<float> transposed(const std::vector<float>& w, int64_t rows, int64_t columns);

}  // namespace vitrum
