#include "vitrum/weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/layout.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxDifferencesShown = 12;  // the rest is counted
constexpr std::array<const char*, 6> kWeightFiles = {
    "model.safetensors",           "model.safetensors.index.json",
    "pytorch_model.bin",           "pytorch_model.bin.index.json",
    "open_clip_model.safetensors", "open_clip_pytorch_model.bin"};

// Collects what is wrong, and which tensors are accounted for.
struct Differences {
  std::vector<std::string> all;
  std::set<std::string, std::less<>> known;

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    all.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
};

// Dimensions of 1 change no memory, and frameworks do not agree on them.
bool same_but_for_ones(const Shape& a, const Shape& b) {
  const auto squeezed = [](const Shape& shape) {
    Shape s;
    for (const int64_t n : shape)
      if (n != 1) s.append(n);
    return s;
  };
  return squeezed(a) == squeezed(b);
}

void compare(const TensorSource& file, const StoredTensor& expected, DType dtype,
             Differences& wrong) {
  if (expected.name.empty()) return;
  wrong.known.insert(expected.name);
  const TensorInfo* found = file.find(expected.name);
  if (!found)
    wrong.add("{} {} is missing", expected.name, expected.shape.str());
  else if (!same_but_for_ones(found->shape, expected.shape))
    wrong.add("{} is {}, expected {}", expected.name, found->shape.str(), expected.shape.str());
  else if (!is_float(found->dtype))
    wrong.add("{} is {}, expected floating-point numbers", expected.name, name_of(found->dtype));
  else if (found->dtype != dtype)
    wrong.add("{} is {}, the tensor before it {}", expected.name, name_of(found->dtype),
              name_of(dtype));
}

// The tensor's numbers, and those of the first row of another added to them.
std::span<const std::byte> plus_first_row(std::span<const std::byte> bytes, DType dtype,
                                          std::span<const std::byte> other, DType other_dtype,
                                          std::vector<std::byte>& scratch) {
  std::vector<float> sum = to_floats(bytes, dtype);
  const std::vector<float> row = to_floats(
      other.first(std::min(other.size(), sum.size() * size_of(other_dtype))), other_dtype);
  for (size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
  const auto all = std::as_bytes(std::span(sum));
  scratch.assign(all.begin(), all.end());
  return scratch;
}

Matrix matrix_of(const Shape& shape, size_t tensors, size_t element) {
  const int64_t rows = shape.rank() > 1 ? shape[0] : shape.numel();
  const int64_t columns = rows > 0 ? shape.numel() / rows : 0;
  return {rows / static_cast<int64_t>(tensors), columns, element};
}

}  // namespace

std::vector<ParamSpec> model_params(const ModelConfig& c) {
  Graph g;
  model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
  return g.params;
}

std::string weights_path(const std::string& model) {
  std::error_code ignored;
  if (!fs::is_directory(model, ignored)) return model;
  for (const char* name : kWeightFiles) {
    const fs::path file = fs::path(model) / name;
    if (fs::exists(file, ignored)) return file.string();
  }
  fail_input("{} holds no weights; expected one of {}", model,
             join(std::vector<std::string>(kWeightFiles.begin(), kWeightFiles.end()), ", "));
}

Checkpoint::Checkpoint(const std::string& path)
    : file_(open_tensors(path)), naming_(detect_naming(*file_)) {}

Checkpoint::Checkpoint(const std::string& path, Naming naming)
    : file_(open_tensors(path)), naming_(std::move(naming)) {}

ModelConfig Checkpoint::stored_sizes(ModelConfig config) const {
  require_family(config);
  struct Dims final : StoredDims {
    Dims(const Checkpoint& c, const ModelConfig& m) : file(c), of(m) {}
    std::vector<int64_t> operator()(const char* param, int rank) const override {
      return file.dims_of(param, rank, of);
    }
    std::vector<float> values(const char* name) const override { return file.beside(name); }
    const Checkpoint& file;
    const ModelConfig& of;
  };
  return weights_of(config).stored_sizes(config, dialect(), Dims(*this, config));
}

// Of a tensor that is no parameter, and small; none where it is not.
std::vector<float> Checkpoint::beside(const char* name) const {
  constexpr int64_t kMost = 1 << 16;
  const TensorInfo* t = file_->find(naming_.prefix + name);
  if (!t || !is_float(t->dtype) || t->shape.numel() > kMost) return {};
  return to_floats(file_->bytes(*t), t->dtype);
}

std::vector<int64_t> Checkpoint::dims_of(const char* name, int rank,
                                         const ModelConfig& config) const {
  const auto stored = stored_as(naming_, name, {1, 1}, config);
  const TensorInfo* t = stored ? file_->find(stored->tensors[0].name) : nullptr;
  if (!t || t->shape.rank() != rank) return {};
  std::vector<int64_t> dims(t->shape.begin(), t->shape.end());
  const StoredTensor& part = stored->tensors[0];
  if (rank == 3 && part.first == 1 && part.last == part.of) --dims[1];  // all rows but the first
  if (stored->layout == Layout::kKernel && rank == 2) std::swap(dims[0], dims[1]);
  if (stored->layout == Layout::kConvHwio && rank == 4) dims = {dims[3], dims[2], dims[0], dims[1]};
  return dims;
}

void Checkpoint::require_family(const ModelConfig& config) const {
  if (dialect().family != family_of(config))
    fail_input("{} holds a model of the {} family, not of the {} family", path(), dialect().family,
               family_of(config));
}

void Checkpoint::check(std::span<const ParamSpec> params, const ModelConfig& config,
                       bool head) const {
  require_family(config);
  Differences wrong;
  for (const ParamSpec& param : params) {
    const auto stored = stored_as(naming_, param.name, param.shape, config);
    if (!stored) {
      wrong.add("{} names have no place for {}", naming_.dialect->title, param.name);
      continue;
    }
    const TensorInfo* first = file_->find(stored->tensors[0].name);
    for (const StoredTensor& t : stored->tensors)
      compare(*file_, t, first ? first->dtype : DType::kF32, wrong);
  }
  if (!head)
    for (const ParamSpec& param : model_params(config))
      if (in_head(config, param.name))
        if (const auto stored = stored_as(naming_, param.name, param.shape, config))
          wrong.known.insert(stored->tensors[0].name);
  for (const TensorInfo& t : file_->tensors()) {
    if (wrong.known.contains(t.name)) continue;
    const Extra extra = extra_tensor(naming_, t.name);
    if (extra == Extra::kIgnored || (extra == Extra::kBeforeHead && !head)) continue;
    wrong.add("{} {} is {}", shown_name(t.name), t.shape.str(),
              extra == Extra::kBeforeHead
                  ? "a layer before the head that this model has not; ask for another number of "
                    "classes to replace the head"
                  : "not part of the model");
  }
  if (wrong.all.empty()) return;
  const size_t count = wrong.all.size();
  if (count > kMaxDifferencesShown) {
    wrong.all.resize(kMaxDifferencesShown);
    wrong.add("and {} more", count - kMaxDifferencesShown);
  }
  fail_input("{} does not fit the model: {}", path(), join(wrong.all, "; "));
}

// A sum is f32: another type would round it.
DType Checkpoint::dtype(const ParamSpec& param, const ModelConfig& config) const {
  const StoredParam stored = *stored_as(naming_, param.name, param.shape, config);
  return stored.plus.empty() ? file_->at(stored.tensors[0].name).dtype : DType::kF32;
}

bool Checkpoint::is_quantized(const ParamSpec& param, const ModelConfig& config) const {
  const auto stored = stored_as(naming_, param.name, param.shape, config);
  if (!stored) return false;
  // Queries, keys and values that are stored apart may differ.
  std::optional<DType> dtype;
  return std::ranges::all_of(stored->tensors, [&](const StoredTensor& t) {
    const TensorInfo* tensor = file_->find(t.name);
    const TensorSource::ByteRows rows =
        tensor ? file_->quantized(*tensor) : TensorSource::ByteRows{};
    if (!dtype) dtype = rows.dtype;
    return !rows.scales.empty() && rows.dtype == *dtype;
  });
}

Checkpoint::Quantized Checkpoint::read_quantized(const ParamSpec& param, const ModelConfig& config,
                                                 std::vector<std::byte>& scratch) const {
  const StoredParam stored = *stored_as(naming_, param.name, param.shape, config);
  Quantized all;
  for (const StoredTensor& t : stored.tensors) {
    const TensorSource::ByteRows rows = file_->quantized(file_->at(t.name));
    const std::span<const float> scales = t.part(rows.scales);
    all.bytes = t.part(rows.bytes), all.dtype = rows.dtype;
    all.scales.insert(all.scales.end(), scales.begin(), scales.end());
    if (stored.tensors.size() > 1)
      scratch.insert(scratch.end(), all.bytes.begin(), all.bytes.end());
  }
  if (!scratch.empty()) all.bytes = scratch;
  return all;
}

std::span<const std::byte> Checkpoint::read(const ParamSpec& param, const ModelConfig& config,
                                            std::vector<std::byte>& scratch) const {
  const StoredParam stored = *stored_as(naming_, param.name, param.shape, config);
  const TensorInfo& first = file_->at(stored.tensors[0].name);
  const auto [held, count] = param.held;
  if (const TensorInfo* plus = stored.plus.empty() ? nullptr : &file_->at(stored.plus))
    return plus_first_row(file_->bytes(first), first.dtype, file_->bytes(*plus), plus->dtype,
                          scratch);
  if (stored.tensors.size() == 1 && same_memory(stored.layout) && count == 0)
    return stored.tensors[0].part(file_->bytes(first));
  const Matrix each = matrix_of(param.shape, stored.tensors.size(), size_of(first.dtype));
  scratch.resize(static_cast<size_t>(param.shape.numel()) * each.element);
  const size_t size = scratch.size() / stored.tensors.size();
  for (size_t i = 0; i < stored.tensors.size(); ++i) {
    const std::span<std::byte> to = std::span(scratch).subspan(i * size, size);
    if (stored.tensors[i].name.empty())
      std::fill(to.begin(), to.end(), std::byte{0});
    else
      to_ours(stored.layout, each, config,
              stored.tensors[i].part(file_->bytes(file_->at(stored.tensors[i].name))), to);
  }
  std::memset(scratch.data() + static_cast<size_t>(held) * each.element, 0,
              static_cast<size_t>(count) * each.element);
  return scratch;
}

std::string Checkpoint::not_finite(std::span<const ParamSpec> params,
                                   const ModelConfig& config) const {
  std::vector<std::byte> scratch;
  for (const ParamSpec& param : params) {
    if (!all_finite(to_floats(read(param, config, scratch), dtype(param, config))))
      return param.name;
    release(param, config);
  }
  return "";
}

void Checkpoint::release(const ParamSpec& param, const ModelConfig& config) const {
  const StoredParam stored = *stored_as(naming_, param.name, param.shape, config);
  for (const StoredTensor& t : stored.tensors)
    if (!t.name.empty()) file_->release(file_->at(t.name));
}

}  // namespace vitrum
