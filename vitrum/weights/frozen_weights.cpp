#include "vitrum/weights/frozen_weights.h"

#include <algorithm>
#include <cstring>

#include "vitrum/core/e4m3.h"
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
                             Backend& backend, const ModelConfig& stored)
    : backend_(backend),
      config_(stored),
      file_(weights_path(model)),
      adapt_(adapter(stored, spec.config, position_rule(file_.dialect(), spec.architecture))),
      stored_(stored == spec.config ? g.params : model_params(stored)),
      store_(
          g, backend, [this](size_t param, ParamStore::Form form) { return find(param, form); },
          [this](size_t param) { return read(param); }) {
  file_.check(stored_, config_, config_.classes() > 0);
  store_.packed()->on_copy = [this](const void* data) { release(data); };
}

// Layouts are about the sizes of image models, and there are none to adapt to: those of any will
// do.
FrozenWeights::FrozenWeights(const std::string& file, const Naming& naming, const Graph& g,
                             Backend& backend)
    : backend_(backend),
      file_(file, naming),
      adapt_(adapter(config_, config_, PositionRule::kBicubic)),
      stored_(g.params),
      store_(
          g, backend, [this](size_t param, ParamStore::Form form) { return find(param, form); },
          [this](size_t param) { return read(param); }) {
  file_.check(stored_, config_, /*head=*/true);
  store_.packed()->on_copy = [this](const void* data) { release(data); };
}

void FrozenWeights::release(const void* data) {
  if (const auto found = packed_.find(data); found != packed_.end())
    file_.release(stored_[found->second], config_);
  if (!to_quantize_.contains(data)) return;
  const auto own = std::ranges::find(owned_, data, [](const Buffer& b) { return b.data(); });
  give_back_pages(*own);
  if (to_quantize_[data] == DType::kF32)
    converted_ -= own->size() - own->size() / sizeof(float);  // what is left of it are bytes
}

DType FrozenWeights::quantized() const {
  for (const ParamSpec& param : stored_)
    if (file_.is_quantized(param, config_)) {
      std::vector<std::byte> scratch;
      return file_.read_quantized(param, config_, scratch).dtype;
    }
  return DType::kF32;
}

bool FrozenWeights::is_quantized(const std::string& layer) const {
  const auto weight = std::ranges::find(stored_, layer + ".weight", &ParamSpec::name);
  return weight != stored_.end() && file_.is_quantized(*weight, config_);
}

TensorView FrozenWeights::own(const Shape& shape, DType dtype) {
  TensorView view{nullptr, shape, dtype};
  owned_.push_back(backend_.allocate(view.bytes()));
  view.data = owned_.back().data();
  converted_ += view.bytes();
  return view;
}

TensorView FrozenWeights::find_quantized(size_t param) {
  const ParamSpec& spec = stored_[param];
  std::vector<std::byte> scratch;
  Checkpoint::Quantized stored = file_.read_quantized(spec, config_, scratch);
  TensorView view{const_cast<std::byte*>(stored.bytes.data()), spec.shape, DType::kI8};
  if (scratch.empty()) {
    packed_[view.data] = param, converted_ += view.bytes();
  } else {
    view = own(spec.shape, DType::kI8);
    std::ranges::copy(scratch, static_cast<std::byte*>(view.data));
    to_quantize_[view.data] = view.dtype;
    file_.release(spec, config_);
  }
  store_.packed()->set_scales(view.data, std::move(stored.scales));
  return view;
}

std::vector<float> FrozenWeights::read(size_t param) const {
  const ParamSpec& spec = stored_[param];
  std::vector<std::byte> scratch;
  std::vector<float> values =
      to_floats(file_.read(spec, config_, scratch), file_.dtype(spec, config_));
  file_.release(spec, config_);
  return adapt_->changes(spec.name) ? (*adapt_)(spec.name, values) : values;
}

// As the file has them, or rounded row by row.
TensorView FrozenWeights::find_e4m3(size_t param) {
  const ParamSpec& spec = stored_[param];
  const Shape& shape = store_.specs()[param].shape;
  const TensorView view = own(shape, DType::kE4M3);
  std::vector<float> scales;
  std::vector<std::byte> scratch;
  if (file_.is_quantized(spec, config_) && !adapt_->changes(spec.name))
    if (Checkpoint::Quantized stored = file_.read_quantized(spec, config_, scratch);
        stored.dtype == DType::kE4M3) {
      backend_.upload(view, stored.bytes.data());
      scales = std::move(stored.scales);
    }
  if (scales.empty()) {
    const std::vector<float> values = read(param);
    std::vector<uint8_t> rounded(values.size());
    const auto width = static_cast<size_t>(shape[-1]);
    for (size_t i = 0; i < values.size(); i += width)
      scales.push_back(round_weights_e4m3(std::span(values).subspan(i, width), &rounded[i]));
    backend_.upload(view, rounded.data());
  }
  file_.release(spec, config_);
  store_.packed()->set_scales(view.data, std::move(scales));
  return view;
}

TensorView FrozenWeights::find(size_t param, ParamStore::Form form) {
  using enum ParamStore::Form;
  const ParamSpec& spec = stored_[param];
  if (form == kE4M3) return find_e4m3(param);
  if (form == kToQuantize && backend_.host_visible() && !adapt_->changes(spec.name) &&
      file_.is_quantized(spec, config_) && quantized() == DType::kI8)
    return find_quantized(param);
  const DType stored = file_.dtype(spec, config_),
              wanted = form == kMaster || form == kToQuantize ? DType::kF32 : DType::kBF16;
  std::vector<std::byte> scratch;
  std::span<const std::byte> bytes = file_.read(spec, config_, scratch);
  // The kernels load vectors from any address, but a number must be where numbers may be.
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % size_of(stored) == 0;
  const bool changes = adapt_->changes(spec.name),
             packed = (form == kToPack || form == kToQuantize) &&
                      (stored == DType::kF32 || stored == DType::kBF16);
  if ((stored == wanted || packed) && aligned && scratch.empty() && backend_.host_visible() &&
      !changes) {
    const TensorView mapped{const_cast<std::byte*>(bytes.data()), spec.shape, stored};
    if (packed) packed_[mapped.data] = param;
    (packed ? converted_ : mapped_) +=
        static_cast<size_t>(spec.shape.numel()) * (form == kToQuantize ? 1 : size_of(wanted));
    return mapped;
  }
  std::vector<float> changed;
  if (changes) {
    changed = (*adapt_)(spec.name, to_floats(bytes, stored));
    bytes = std::as_bytes(std::span(changed));
  }
  const DType from = changes ? DType::kF32 : stored;
  const TensorView own = this->own(store_.specs()[param].shape, wanted);
  if (backend_.host_visible()) {
    convert(bytes, from, own.data, wanted);
  } else {
    std::vector<std::byte> staging(own.bytes());
    convert(bytes, from, staging.data(), wanted);
    backend_.upload(own, staging.data());
  }
  if (form == kToQuantize) to_quantize_[own.data] = own.dtype;
  file_.release(spec, config_);
  return own;
}

}  // namespace vitrum
