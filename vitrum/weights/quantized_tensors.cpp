#include "vitrum/weights/quantized_tensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "vitrum/core/e4m3.h"
#include "vitrum/core/error.h"
#include "vitrum/weights/convert_floats.h"

namespace vitrum {
namespace {

const std::string kScale = "_scale", kZeroPoint = "_zero_point";

bool in_eight_bits(const TensorInfo& t) { return t.dtype == DType::kI8 || t.dtype == DType::kE4M3; }

// What a byte stands for but for its scale.
std::array<float, 256> numbers_of(DType dtype) {
  std::array<float, 256> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = dtype == DType::kE4M3 ? from_e4m3(static_cast<uint8_t>(i))
                                       : static_cast<float>(static_cast<int8_t>(i));
  return numbers;
}

// The scale of activations that some writers put beside a layer's weights: ours follow from the
// parameters.
std::string input_scale(const std::string& weight) {
  constexpr std::string_view kEnding = "weight";
  if (!weight.ends_with(kEnding)) return "";
  return weight.substr(0, weight.size() - kEnding.size()) + "input_scale";
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

bool QuantizedTensors::recognizes(const TensorSource& file) {
  return std::ranges::any_of(file.tensors(), [&](const TensorInfo& t) {
    return in_eight_bits(t) && !t.name.ends_with(kZeroPoint);
  });
}

QuantizedTensors::QuantizedTensors(std::unique_ptr<TensorSource> file) : file_(std::move(file)) {
  std::set<std::string_view> beside;  // tensors that belong to another
  for (const TensorInfo& t : file_->tensors())
    if (in_eight_bits(t))
      for (const std::string& name : {t.name + kScale, t.name + kZeroPoint, input_scale(t.name)})
        if (const TensorInfo* other = file_->find(name)) beside.insert(other->name);
  for (const TensorInfo& t : file_->tensors()) {
    if (beside.contains(t.name)) continue;
    TensorInfo& info = tensors_.emplace_back(t);
    Place& place = places_.emplace_back();
    place.stored = &t;
    info.offset = places_.size() - 1;
    if (!in_eight_bits(t)) continue;
    place.scales = scales_of(t);
    info.dtype = DType::kF32, info.bytes = t.bytes * sizeof(float);
  }
  index_names();
}

std::vector<float> QuantizedTensors::scales_of(const TensorInfo& matrix) const {
  const std::string name = shown_name(matrix.name), of_scale = shown_name(matrix.name + kScale);
  if (matrix.shape.rank() != 2 || matrix.shape.numel() == 0)
    fail_input("'{}': {} is {} of shape {}; only matrices may be", path(), name,
               name_of(matrix.dtype), matrix.shape.str());
  const TensorInfo* stored = file_->find(matrix.name + kScale);
  if (!stored)
    fail_input("'{}': {} is {}, but there is no {}", path(), name, name_of(matrix.dtype), of_scale);
  const int64_t rows = matrix.shape[0], count = stored->shape.numel();
  const bool a_row_each = stored->shape.rank() > 0 && stored->shape[0] == rows && count == rows;
  if (!a_row_each && count != 1)
    fail_input("'{}': {} is {}, expected a number for each of the {} rows of {}", path(), of_scale,
               stored->shape.str(), rows, name);
  std::vector<float> scales = read_floats(*file_, *stored);
  for (const float scale : scales)
    if (!(scale > 0) || !std::isfinite(scale))
      fail_input("'{}': {} holds {}; a scale is a positive number", path(), of_scale, scale);
  if (const TensorInfo* zero = file_->find(matrix.name + kZeroPoint);
      zero && !all_zero(file_->bytes(*zero)))
    fail_input("'{}': {} is not zero; only symmetric weights are read", path(),
               shown_name(zero->name));
  scales.resize(static_cast<size_t>(rows), scales.front());
  return scales;
}

std::span<const std::byte> QuantizedTensors::bytes(const TensorInfo& tensor) const {
  const Place& place = places_[tensor.offset];
  if (place.scales.empty()) return file_->bytes(*place.stored);
  const std::lock_guard lock(mutex_);
  if (!place.numbers.data()) {
    Buffer numbers = allocate_host(tensor.bytes);
    const std::span<const std::byte> from = file_->bytes(*place.stored);
    auto* to = reinterpret_cast<float*>(numbers.data());
    const std::array<float, 256> numbers_of_bytes = numbers_of(place.stored->dtype);
    const size_t width = from.size() / place.scales.size();
    for (size_t i = 0; i < from.size(); ++i)
      to[i] = numbers_of_bytes[static_cast<uint8_t>(from[i])] * place.scales[i / width];
    place.numbers = std::move(numbers);
  }
  return {place.numbers.data(), tensor.bytes};
}

TensorSource::ByteRows QuantizedTensors::quantized(const TensorInfo& tensor) const {
  const Place& place = places_[tensor.offset];
  if (place.scales.empty()) return {};
  return {file_->bytes(*place.stored), place.scales, place.stored->dtype};
}

void QuantizedTensors::release(const TensorInfo& tensor) const {
  file_->release(*places_[tensor.offset].stored);
}

}  // namespace vitrum
