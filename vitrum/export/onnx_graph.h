// Building blocks of an ONNX graph: nodes, constants and weights under unique names. Internal to
// export/.
#pragma once
#include <functional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/shape.h"
#include "vitrum/export/onnx.pb.h"

namespace vitrum {

struct OnnxAttribute {
  std::string name;
  std::variant<int64_t, float, std::vector<int64_t>> value;
};

class OnnxGraph {
 public:
  // Puts the bytes of a weight where they belong: into the tensor or into a file of its own.
  using Store = std::function<void(onnx::TensorProto&, std::span<const float>)>;

  OnnxGraph(onnx::GraphProto& graph, Store store) : graph_(graph), store_(std::move(store)) {}

  // Appends a node and returns the name of its (first) result: `name`, or with a number where that
  // is taken.
  std::string node(const char* op, const std::vector<std::string>& in, const std::string& name,
                   const std::vector<OnnxAttribute>& attributes = {}) {
    return nodes(op, in, {name}, attributes).front();
  }
  std::vector<std::string> nodes(const char* op, const std::vector<std::string>& in,
                                 std::vector<std::string> names,
                                 const std::vector<OnnxAttribute>& attributes = {});

  // Equal constants are stored once.
  std::string number(float x);
  std::string index(int64_t i);
  std::string list(const std::vector<int64_t>& items);
  std::string indices(const std::string& name, const std::vector<int64_t>& items);  // a long one
  std::string weight(const std::string& name, const Shape& shape, std::span<const float> values);

  // Whole numbers, in the file itself.
  std::string whole(const std::string& name, const Shape& shape, std::span<const int8_t> values);
  std::string whole(const std::string& name, const Shape& shape, std::span<const int32_t> values);

  void input(const std::string& name, const Shape& shape, DType dtype);  // first dimension: batch
  void output(const std::string& name, const Shape& shape);

 private:
  std::string unique(const std::string& name);
  onnx::TensorProto& tensor(const std::string& name, const Shape& shape, int type);
  template <class T>
  std::string shared(const std::string& name, const Shape& shape, int type,
                     std::span<const T> data);

  onnx::GraphProto& graph_;
  Store store_;
  std::set<std::string> names_;
  std::set<std::string> constants_;
};

}  // namespace vitrum
