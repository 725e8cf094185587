#include "vitrum/weights/frozen_weights.h"

#include <algorithm>
#include <cstring>

#include "vitrum/weights/convert_floats.h"

namespace vitrum {
namespace {

// Block by block, so that a large tensor is never there in f32 as well.
void narrow(std::span<const std::byte> bytes, DType dtype, uint16_t* out) {
  const size_t block = 4096 * size_of(dtype);
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(block, bytes.size()))) {
    const std::vector<float> values = to_floats(bytes.first(std::min(block, bytes.size())), dtype);
    out = std::transform(values.begin(), values.end(), out, to_bf16);
  }
}

void convert(std::span<const std::byte> bytes, DType from, void* to, DType dtype) {
  if (from == dtype) {
    std::memcpy(to, bytes.data(), bytes.size());
  } else if (dtype == DType::kBF16) {
    narrow(bytes, from, static_cast<uint16_t*>(to));
  } else {
    const std::vector<float> values = to_floats(bytes, from);
    std::memcpy(to, values.data(), values.size() * sizeof(float));
  }
}

}  // namespace

FrozenWeights::FrozenWeights(const std::string& model, const ModelSpec& spec, const Graph& g,
                             Backend& backend)
    : backend_(backend),
      config_(spec.config),
      file_(weights_path(model)),
      store_(g, backend, [this](size_t param, Arena which) { return find(param, which); }) {
  file_.check(store_.specs(), config_, config_.classes() > 0);
}

TensorView FrozenWeights::find(size_t param, Arena which) {
  const ParamSpec& spec = store_.specs()[param];
  const DType stored = file_.dtype(spec, config_), wanted = store_.dtype(which);
  std::vector<std::byte> scratch;
  const std::span<const std::byte> bytes = file_.read(spec, config_, scratch);
  // The kernels load vectors from any address, but a number must be where numbers may be.
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % size_of(wanted) == 0;
  if (stored == wanted && aligned && scratch.empty() && backend_.host_visible()) {
    mapped_ += bytes.size();
    return {const_cast<std::byte*>(bytes.data()), spec.shape, wanted};
  }
  TensorView own{nullptr, spec.shape, wanted};
  owned_.push_back(backend_.allocate(own.bytes()));
  own.data = owned_.back().data();
  converted_ += own.bytes();
  if (backend_.host_visible()) {
    convert(bytes, stored, own.data, wanted);
  } else {
    std::vector<std::byte> staging(own.bytes());
    convert(bytes, stored, staging.data(), wanted);
    backend_.upload(own, staging.data());
  }
  file_.release(spec, config_);
  return own;
}

}  // namespace vitrum
