// Parameters as a dialect's file holds them, ready to be written: names, and elements in its order.
// Internal to weights/.
#pragma once
#include <deque>
#include <span>
#include <vector>

#include "vitrum/graph/graph.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/write_tensors.h"

namespace vitrum {

class StoredTensors {
 public:
  StoredTensors(const ModelConfig& config, const Naming& naming)
      : config_(config), naming_(naming) {}

  // `bytes` are ours. What is stored as it is stays where it is, so they must live until it is
  // written; keep() takes them over. Fails where the dialect has no place for the parameter.
  void add(const ParamSpec& param, DType dtype, std::span<const std::byte> bytes);
  // A tensor that is no parameter, under the file's own name.
  void add_plain(const std::string& name, const Shape& shape, DType dtype,
                 std::span<const std::byte> bytes);
  // The scales of a parameter that is added in eight bits, one a row: NAME_scale beside NAME.
  void add_scales(const ParamSpec& param, std::span<const float> scales);
  std::span<const std::byte> keep(std::vector<std::byte> bytes) {
    return owned_.emplace_back(std::move(bytes));
  }

  const std::vector<NamedTensor>& all() const { return tensors_; }

 private:
  void add(const StoredTensor& t, Layout layout, const Shape& ours, DType dtype,
           std::span<const std::byte> bytes);
  void add_part(const StoredTensor& t, DType dtype, std::span<const std::byte> bytes);

  const ModelConfig& config_;
  const Naming& naming_;
  std::vector<NamedTensor> tensors_;
  std::deque<std::vector<std::byte>> owned_;
};

}  // namespace vitrum
