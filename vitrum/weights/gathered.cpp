#include "vitrum/weights/gathered.h"

#include <cstring>
#include <utility>

namespace vitrum {
namespace {

template <size_t Size>
void gather_dims(const std::byte* from, std::byte*& to, const Shape& shape, const Shape& strides,
                 int dim) {
  const int64_t step = strides[dim] * static_cast<int64_t>(Size);
  for (int64_t i = 0; i < shape[dim]; ++i, from += step) {
    if (dim + 1 < shape.rank()) {
      gather_dims<Size>(from, to, shape, strides, dim + 1);
    } else {
      std::memcpy(to, from, Size);
      to += Size;
    }
  }
}

}  // namespace

TensorBytes gather(const std::byte* from, const Shape& shape, const Shape& strides,
                   size_t element_size) {
  TensorBytes bytes(static_cast<size_t>(shape.numel()) * element_size);
  if (bytes.empty()) return bytes;
  std::byte* to = bytes.data();
  if (shape.rank() == 0)
    std::memcpy(to, from, element_size);
  else if (element_size == 1)
    gather_dims<1>(from, to, shape, strides, 0);
  else if (element_size == 2)
    gather_dims<2>(from, to, shape, strides, 0);
  else if (element_size == 4)
    gather_dims<4>(from, to, shape, strides, 0);
  else
    gather_dims<8>(from, to, shape, strides, 0);
  return bytes;
}

Shape c_strides(const Shape& shape) {
  Shape strides;
  for (int i = 0; i < shape.rank(); ++i) {
    int64_t stride = 1;
    for (int j = i + 1; j < shape.rank(); ++j) stride *= shape[j];
    strides.append(stride);
  }
  return strides;
}

Shape fortran_strides(const Shape& shape) {
  Shape strides;
  int64_t stride = 1;
  for (int i = 0; i < shape.rank(); ++i) strides.append(std::exchange(stride, stride * shape[i]));
  return strides;
}

std::span<const std::byte> GatheredTensors::get(size_t key,
                                                const std::function<TensorBytes()>& make) {
  const std::lock_guard lock(mutex_);
  const auto at = made_.find(key);
  return at != made_.end() ? at->second : made_.emplace(key, make()).first->second;
}

}  // namespace vitrum
