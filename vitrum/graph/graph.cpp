#include "vitrum/graph/graph.h"

#include <algorithm>
#include <cassert>

#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"

namespace vitrum {

static bool ends_with_name(std::string_view path, std::string_view name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

bool in_block(std::string_view path) {
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    if (path.substr(at, end - at).find_first_not_of("0123456789") == path.npos) return true;
    at = end + 1;
  }
  return false;
}

bool LoraSpec::adapts(std::string_view path) const {
  return rank > 0 && in_block(path) &&
         std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& name) { return ends_with_name(path, name); });
}

Value Graph::add_value(ValueInfo info) {
  values.push_back(std::move(info));
  return {this, static_cast<ValueId>(values.size() - 1)};
}

Value Graph::input(std::string name, Shape shape, DType dtype, bool exact) {
  return add_value({.name = std::move(name),
                    .shape = shape,
                    .dtype = dtype,
                    .role = Role::kInput,
                    .exact = exact});
}

Value Graph::constant(std::string name, Shape shape, std::vector<float> data) {
  assert(shape.numel() == static_cast<int64_t>(data.size()));
  return add_value({.name = std::move(name),
                    .shape = shape,
                    .role = Role::kConst,
                    .exact = true,
                    .data = std::move(data)});
}

Value Graph::param(ParamSpec spec) {
  for (const ParamSpec& p : params)
    if (p.name == spec.name) fail("parameter {} is declared twice", spec.name);
  Value v = add_value({.name = spec.name,
                       .shape = spec.shape,
                       .role = Role::kParam,
                       .exact = true,
                       .param = static_cast<int>(params.size())});
  params.push_back(std::move(spec));
  return v;
}

Value Graph::state(std::string name, Shape shape, DType dtype) {
  return add_value({.name = std::move(name),
                    .shape = shape,
                    .dtype = dtype,
                    .role = Role::kState,
                    .exact = true});
}

Value Graph::arena(Arena arena, int64_t size, DType dtype) {
  return add_value({.name = "arena",
                    .shape = {size},
                    .dtype = dtype,
                    .role = Role::kArena,
                    .exact = true,
                    .arena = arena});
}

Value Graph::emit(std::string name, Op op, std::vector<Value> in, std::vector<Shape> out) {
  Node node{.op = std::move(op), .in = {}, .out = {}, .name = name, .region = region};
  for (Value v : in) node.in.push_back(v.id());
  for (size_t i = 0; i < out.size(); ++i)
    node.out.push_back(
        add_value({.name = i == 0 ? name : name + "." + std::to_string(i), .shape = out[i]}).id());
  nodes.push_back(std::move(node));
  return {this, nodes.back().out[0]};
}

Value Graph::rng() {
  if (!rng_) rng_ = input("rng", {sizeof(RandomState) / 4}, DType::kI32);
  return rng_;
}

Value Scope::buffer(const std::string& leaf, Shape shape, Init init) const {
  return graph_->param({.name = (*this / leaf).path(),
                        .shape = shape,
                        .init = std::move(init),
                        .decay = false,
                        .trainable = false,
                        .buffer = true});
}

void ParamSpec::fill(std::span<float> values, uint64_t seed) const {
  init.fill(values, name, seed);
  for (int64_t i = 0; i < held.count; ++i) values[static_cast<size_t>(held.first + i)] = 0;
}

Value Scope::param(const std::string& leaf, Shape shape, Init init, bool decay) const {
  return graph_->param(
      {.name = (*this / leaf).path(), .shape = shape, .init = std::move(init), .decay = decay});
}

}  // namespace vitrum
