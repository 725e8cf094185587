#include "vitrum/weights/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/shown.h"

namespace vitrum {

std::string shown_name(std::string_view name) { return json_string(shown(name)); }

void TensorSource::index_names() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto name = [&](uint32_t i) -> const std::string& { return tensors_[i].name; };
  std::ranges::sort(by_name_, {}, name);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name);
  if (twice != by_name_.end())
    fail_input("'{}' has the tensor {} twice", path(), shown_name(name(*twice)));
}

const TensorInfo* TensorSource::find(std::string_view name) const {
  const auto name_at = [&](uint32_t i) -> std::string_view { return tensors_[i].name; };
  const auto at = std::ranges::lower_bound(by_name_, name, {}, name_at);
  return at != by_name_.end() && name_at(*at) == name ? &tensors_[*at] : nullptr;
}

const TensorInfo& TensorSource::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (!tensor) fail_input("'{}' has no tensor {}", path(), shown_name(name));
  return *tensor;
}

void TensorSource::copy_to(const TensorInfo& tensor, const TensorView& target) const {
  if (tensor.dtype != target.dtype || tensor.shape != target.shape)
    fail_input("'{}': tensor {} is {} {}, expected {} {}", path(), shown_name(tensor.name),
               name_of(tensor.dtype), tensor.shape.str(), name_of(target.dtype),
               target.shape.str());
  if (tensor.bytes > 0) std::memcpy(target.data, bytes(tensor).data(), tensor.bytes);
}

}  // namespace vitrum
