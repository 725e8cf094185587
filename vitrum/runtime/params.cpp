#include "vitrum/runtime/params.h"

#include <algorithm>
#include <cassert>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"

namespace vitrum {
namespace {
constexpr int64_t kAlign =
    16;  // elements: every tensor starts on a cache line, in bf16 on half of one
}

ParamStore::ParamStore(const Graph& g, Backend& backend, DType master)
    : backend_(backend), master_(master), specs_(g.params) {
  lay_out();
  arena(Arena::kMaster);
}

ParamStore::ParamStore(const Graph& g, Backend& backend, Source source, ParamValues reader)
    : backend_(backend),
      source_(std::move(source)),
      reader_(std::move(reader)),
      specs_(g.params),
      frozen_(true) {
  lay_out();
  for (auto& views : found_) views.resize(specs_.size());
}

void ParamStore::lay_out() {
  offsets_.resize(specs_.size());
  for (const bool learns : {true, false}) {
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].trainable != learns) continue;
      offsets_[i] = elements_;
      elements_ += round_up(specs_[i].shape.numel(), kAlign);
    }
    if (learns) moments_last_ = learning_ = elements_;
  }
}

void ParamStore::initialize(uint64_t seed) {
  // Draws take longer than anything else before the first step: several parameters at a time.
  constexpr int64_t kWorthThreads = int64_t{1} << 20;
  ThreadPool pool(elements_ < kWorthThreads ? 1 : available_cores());
  std::vector<std::vector<float>> values(static_cast<size_t>(4 * pool.threads()));
  for (size_t first = 0; first < specs_.size(); first += values.size()) {
    const size_t count = std::min(values.size(), specs_.size() - first);
    pool.run(static_cast<int64_t>(count), [&](int64_t k, int) {
      const ParamSpec& spec = specs_[first + static_cast<size_t>(k)];
      values[static_cast<size_t>(k)].resize(static_cast<size_t>(spec.shape.numel()));
      spec.fill(values[static_cast<size_t>(k)], seed);
    });
    for (size_t k = 0; k < count; ++k) write(first + k, values[k]);
  }
  refresh_compute();
}

int64_t ParamStore::parameter_count() const {
  int64_t n = 0;
  for (const ParamSpec& spec : specs_)
    if (!spec.buffer) n += spec.counted();
  return n;
}

int ParamStore::index(const std::string& name) const {
  for (size_t i = 0; i < specs_.size(); ++i)
    if (specs_[i].name == name) return static_cast<int>(i);
  return -1;
}

TensorView ParamStore::arena(Arena which) {
  assert(!source_);
  Buffer& buffer = buffers_[static_cast<size_t>(which)];
  const int64_t n = elements(which);
  const TensorView view{buffer.data(), {n}, dtype(which)};
  used_[static_cast<size_t>(which)] = true;
  if (view || n == 0) return view;
  buffer = backend_.allocate(static_cast<size_t>(n) * size_of(dtype(which)));
  if (which == Arena::kCompute) refresh_compute();
  if (which == Arena::kEma)
    for (size_t i = 0; i < specs_.size(); ++i) write(i, read(i), Arena::kEma);
  return {buffer.data(), {n}, dtype(which)};
}

void ParamStore::keep_moments(int64_t first, int64_t last) {
  assert(!has(Arena::kMoment1) && !has(Arena::kMoment2) && first <= last && last <= learning_);
  moments_first_ = first, moments_last_ = last;
}

TensorView ParamStore::part(Arena which, int64_t first, int64_t count) {
  const TensorView all = arena(which);
  const int64_t at = first - (is_moment(which) ? moments_first_ : 0);
  assert(at >= 0 && at + count <= all.shape.numel());
  return {static_cast<std::byte*>(all.data) + at * static_cast<int64_t>(size_of(all.dtype)),
          {count},
          all.dtype};
}

void ParamStore::upload(size_t param, Arena which, const std::byte* from) {
  if (keeps_all(which)) return backend_.upload(view(param, which), from);
  const int64_t start = offsets_[param], first = std::max(start, moments_first_),
                last = std::min(start + specs_[param].shape.numel(), moments_last_);
  if (first < last)
    backend_.upload(part(which, first, last - first),
                    from + (first - start) * static_cast<int64_t>(size_of(dtype(which))));
}

TensorView ParamStore::find(size_t param, Form form) {
  TensorView& view = found_[static_cast<size_t>(form)][param];
  if (!view) view = source_(param, form);
  return view;
}

TensorView ParamStore::view_to_pack(size_t param) {
  return source_ ? find(param, Form::kToPack) : view(param, Arena::kCompute);
}

TensorView ParamStore::view_to_quantize(size_t param, Arena which) {
  return source_ ? find(param, Form::kToQuantize) : view(param, which);
}

TensorView ParamStore::view_to_e4m3(size_t param, Arena which) {
  return source_ ? find(param, Form::kE4M3) : view(param, which);
}

TensorView ParamStore::view(size_t param, Arena which) {
  if (source_) {
    assert(which == Arena::kMaster || which == Arena::kCompute);
    return find(param, which == Arena::kMaster ? Form::kMaster : Form::kCompute);
  }
  if (which == Arena::kEma && specs_[param].buffer) which = Arena::kMaster;  // not averaged
  assert(has_room(param, which));
  TensorView view = part(which, offsets_[param], specs_[param].shape.numel());
  view.shape = specs_[param].shape;
  return view;
}

TensorView ParamStore::state(const std::string& name, Shape shape, DType dtype) {
  auto [it, fresh] = states_.try_emplace(name);
  if (fresh) {
    it->second.buffer = backend_.allocate(static_cast<size_t>(shape.numel()) * size_of(dtype));
    it->second.view = {it->second.buffer.data(), shape, dtype};
  }
  assert(it->second.view.shape == shape && it->second.view.dtype == dtype);
  return it->second.view;
}

std::map<std::string, TensorView> ParamStore::states() const {
  std::map<std::string, TensorView> all;
  for (const auto& [name, state] : states_) all[name] = state.view;
  return all;
}

std::vector<float> ParamStore::read(size_t param, Arena which) {
  if (reader_) return reader_(param);
  const TensorView from = view(param, which);
  std::vector<float> out(static_cast<size_t>(from.shape.numel()));
  if (from.dtype == DType::kF32) {
    backend_.download(out.data(), from);
  } else if (from.dtype == DType::kF64) {
    std::vector<double> wide(out.size());
    backend_.download(wide.data(), from);
    std::transform(wide.begin(), wide.end(), out.begin(),
                   [](double x) { return static_cast<float>(x); });
  } else {
    std::vector<uint16_t> narrow(out.size());
    backend_.download(narrow.data(), from);
    std::transform(narrow.begin(), narrow.end(), out.begin(), from_bf16);
  }
  return out;
}

void ParamStore::write(size_t param, std::span<const float> values, Arena which) {
  const TensorView to = view(param, which);
  assert(static_cast<int64_t>(values.size()) == to.shape.numel());
  if (to.dtype == DType::kF32) {
    backend_.upload(to, values.data());
  } else if (to.dtype == DType::kF64) {
    const std::vector<double> wide(values.begin(), values.end());
    backend_.upload(to, wide.data());
  } else {
    std::vector<uint16_t> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), to_bf16);
    backend_.upload(to, narrow.data());
  }
}

void ParamStore::refresh_compute() {
  if (!has(Arena::kCompute)) return;
  for (size_t i = 0; i < specs_.size(); ++i) write(i, read(i), Arena::kCompute);
}

}  // namespace vitrum
