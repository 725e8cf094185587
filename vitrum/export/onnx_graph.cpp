#include "vitrum/export/onnx_graph.h"

#include <fmt/format.h>

#include "vitrum/core/join.h"

namespace vitrum {
namespace {

using onnx::AttributeProto;
using onnx::TensorProto;

void set_value(AttributeProto& attribute, int64_t x) {
  attribute.set_type(AttributeProto::INT), attribute.set_i(x);
}
void set_value(AttributeProto& attribute, float x) {
  attribute.set_type(AttributeProto::FLOAT), attribute.set_f(x);
}
void set_value(AttributeProto& attribute, const std::vector<int64_t>& list) {
  attribute.set_type(AttributeProto::INTS);
  for (const int64_t x : list) attribute.add_ints(x);
}

void describe(onnx::ValueInfoProto& value, const std::string& name, const Shape& shape, int type) {
  value.set_name(name);
  auto& tensor = *value.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(type);
  for (int i = 0; i < shape.rank(); ++i) {
    auto& dim = *tensor.mutable_shape()->add_dim();
    i == 0 ? dim.set_dim_param("batch") : dim.set_dim_value(shape[i]);
  }
}

}  // namespace

std::string OnnxGraph::unique(const std::string& name) {
  std::string candidate = name;
  for (int n = 2; !names_.insert(candidate).second; ++n) candidate = fmt::format("{}_{}", name, n);
  return candidate;
}

std::vector<std::string> OnnxGraph::nodes(const char* op, const std::vector<std::string>& in,
                                          std::vector<std::string> names,
                                          const std::vector<OnnxAttribute>& attributes) {
  onnx::NodeProto& node = *graph_.add_node();
  node.set_op_type(op);
  for (const std::string& name : in) node.add_input(name);
  for (std::string& name : names) node.add_output(name = unique(name));
  node.set_name(names.front());
  for (const OnnxAttribute& a : attributes) {
    AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(a.name);
    std::visit([&](const auto& x) { set_value(attribute, x); }, a.value);
  }
  return names;
}

TensorProto& OnnxGraph::tensor(const std::string& name, const Shape& shape, int type) {
  TensorProto& tensor = *graph_.add_initializer();
  tensor.set_name(unique(name));
  tensor.set_data_type(type);
  for (const int64_t dim : shape) tensor.add_dims(dim);
  return tensor;
}

template <class T>
std::string OnnxGraph::shared(const std::string& name, const Shape& shape, int type,
                              std::span<const T> data) {
  if (constants_.insert(name).second)
    tensor(name, shape, type)
        .set_raw_data(std::string(reinterpret_cast<const char*>(data.data()), data.size_bytes()));
  return name;
}

std::string OnnxGraph::number(float x) {
  return shared<float>(fmt::format("number.{}", x), {}, TensorProto::FLOAT, {&x, 1});
}

std::string OnnxGraph::index(int64_t i) {
  return shared<int64_t>(fmt::format("index.{}", i), {}, TensorProto::INT64, {&i, 1});
}

std::string OnnxGraph::list(const std::vector<int64_t>& items) {
  return shared<int64_t>(fmt::format("list.{}", join(items, ",")),
                         {static_cast<int64_t>(items.size())}, TensorProto::INT64, items);
}

std::string OnnxGraph::indices(const std::string& name, const std::vector<int64_t>& items) {
  TensorProto& t = tensor(name, {static_cast<int64_t>(items.size())}, TensorProto::INT64);
  t.set_raw_data(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(int64_t));
  return t.name();
}

std::string OnnxGraph::weight(const std::string& name, const Shape& shape,
                              std::span<const float> values) {
  TensorProto& t = tensor(name, shape, TensorProto::FLOAT);
  store_(t, values);
  return t.name();
}

template <class T>
static void set_raw(TensorProto& t, std::span<const T> values) {
  t.set_raw_data(std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
}

std::string OnnxGraph::whole(const std::string& name, const Shape& shape,
                             std::span<const int8_t> values) {
  TensorProto& t = tensor(name, shape, TensorProto::INT8);
  return set_raw(t, values), t.name();
}

std::string OnnxGraph::whole(const std::string& name, const Shape& shape,
                             std::span<const int32_t> values) {
  TensorProto& t = tensor(name, shape, TensorProto::INT32);
  return set_raw(t, values), t.name();
}

void OnnxGraph::input(const std::string& name, const Shape& shape, DType dtype) {
  describe(*graph_.add_input(), unique(name), shape,
           dtype == DType::kU8 ? TensorProto::UINT8 : TensorProto::FLOAT);
}

void OnnxGraph::output(const std::string& name, const Shape& shape) {
  describe(*graph_.add_output(), name, shape, TensorProto::FLOAT);
}

}  // namespace vitrum
