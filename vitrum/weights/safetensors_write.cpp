#include <algorithm>
#include <cassert>

#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/safetensors_dtype.h"

namespace vitrum {
namespace {

using Order = std::vector<const NamedTensor*>;

Order layout_order(std::span<const NamedTensor> tensors) {
  Order order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int x = safetensors_rank(a->tensor.dtype), y = safetensors_rank(b->tensor.dtype);
    return x != y ? x > y : a->name < b->name;
  });
  return order;
}

void refuse_bad_names(const std::string& path, const Order& order) {
  std::vector<std::string_view> names;
  for (const NamedTensor* t : order) names.push_back(t->name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    fail_input("cannot write '{}': tensor {} is given twice", path, json_string(*twice));
  if (std::binary_search(names.begin(), names.end(), "__metadata__"))
    fail_input("cannot write '{}': no tensor may be called \"__metadata__\"", path);
}

void describe(JsonWriter& json, const NamedTensor& t, size_t begin) {
  json.key(t.name).begin_object().field("dtype", safetensors_name(t.tensor.dtype));
  json.key("shape").begin_array();
  for (const int64_t dim : t.tensor.shape) json.value(dim);
  json.end_array().key("data_offsets").begin_array();
  json.value(begin).value(begin + t.tensor.bytes()).end_array().end_object();
}

std::string header_of(const Order& order, const std::map<std::string, std::string>& metadata) {
  JsonWriter json;
  json.begin_object();
  if (!metadata.empty()) {
    json.key("__metadata__").begin_object();
    for (const auto& [key, value] : metadata) json.field(key, value);
    json.end_object();
  }
  size_t offset = 0;
  for (const NamedTensor* t : order) {
    describe(json, *t, offset);
    offset += t->tensor.bytes();
  }
  std::string header = json.end_object().str();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void()>& verify) {
  const Order order = layout_order(tensors);
  refuse_bad_names(path, order);
  const std::string header = header_of(order, metadata);
  if (header.size() > SafetensorsFile::kMaxHeader || order.size() > SafetensorsFile::kMaxTensors)
    fail_input("cannot write '{}': {} tensors are more than a safetensors header holds", path,
               order.size());

  AtomicFile file(path);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const NamedTensor* t : order) {
    assert(t->tensor || t->tensor.bytes() == 0);
    file.write({static_cast<const std::byte*>(t->tensor.data), t->tensor.bytes()});
  }
  verify();
  file.commit();
}

}  // namespace vitrum
