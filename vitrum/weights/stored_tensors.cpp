#include "vitrum/weights/stored_tensors.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/layout.h"

namespace vitrum {

void StoredTensors::add(const ParamSpec& param, DType dtype, std::span<const std::byte> bytes) {
  const auto stored = stored_as(naming_, param.name, param.shape, config_);
  if (!stored) fail_input("{} has no place for {}", naming_.dialect->title, param.name);
  if (naming_.dialect->name == "npz" && dtype == DType::kBF16) {  // NumPy has no bf16
    const std::vector<float> values = to_floats(bytes, dtype);
    const auto wide = std::as_bytes(std::span(values));
    bytes = keep({wide.begin(), wide.end()}), dtype = DType::kF32;
  }
  const size_t each = bytes.size() / stored->tensors.size();
  for (const StoredTensor& t : stored->tensors) {
    if (!t.name.empty()) add(t, stored->layout, param.shape, dtype, bytes.first(each));
    bytes = bytes.subspan(each);
  }
}

void StoredTensors::add_plain(const std::string& name, const Shape& shape, DType dtype,
                              std::span<const std::byte> bytes) {
  tensors_.push_back({name, {const_cast<std::byte*>(bytes.data()), shape, dtype}});
}

void StoredTensors::add_scales(const ParamSpec& param, std::span<const float> scales) {
  const auto stored = stored_as(naming_, param.name, param.shape, config_);
  if (!same_memory(stored->layout) || param.held.count > 0)
    fail_input("{} lays out {} in another way, which eight bits have no place in",
               naming_.dialect->title, param.name);
  const size_t rows = scales.size() / stored->tensors.size();
  for (const StoredTensor& t : stored->tensors) {
    StoredTensor scale = t;
    scale.name += "_scale", scale.shape = {t.shape[0], 1};
    const auto bytes = std::as_bytes(scales.first(rows));
    if (t.of > 1)
      add_part(scale, DType::kF32, bytes);
    else
      tensors_.push_back({scale.name,
                          {const_cast<std::byte*>(keep({bytes.begin(), bytes.end()}).data()),
                           scale.shape, DType::kF32}});
    scales = scales.subspan(rows);
  }
}

void StoredTensors::add(const StoredTensor& t, Layout layout, const Shape& ours, DType dtype,
                        std::span<const std::byte> bytes) {
  if (!same_memory(layout)) {
    const int64_t columns = ours.rank() > 1 ? ours.numel() / ours[0] : 1;
    std::vector<std::byte> permuted(bytes.size());
    from_ours(layout, {t.shape.numel() / columns, columns, size_of(dtype)}, config_, bytes,
              permuted);
    bytes = keep(std::move(permuted));
  }
  if (t.of > 1) return add_part(t, dtype, bytes);
  tensors_.push_back({t.name, {const_cast<std::byte*>(bytes.data()), t.shape, dtype}});
}

void StoredTensors::add_part(const StoredTensor& t, DType dtype, std::span<const std::byte> bytes) {
  auto whole = std::ranges::find(tensors_, t.name, &NamedTensor::name);
  if (whole == tensors_.end()) {
    const TensorView view{nullptr, t.shape, dtype};
    std::vector<std::byte>& room = owned_.emplace_back(view.bytes());
    tensors_.push_back({t.name, {room.data(), t.shape, dtype}});
    whole = tensors_.end() - 1;
  }
  const TensorView& view = whole->tensor;
  const std::span all(static_cast<std::byte*>(view.data), view.bytes());
  std::ranges::copy(bytes, t.part(all).begin());
}

}  // namespace vitrum
