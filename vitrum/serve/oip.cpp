#include "vitrum/serve/oip.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "vitrum/core/base64.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/serve/json_body.h"

namespace vitrum::serve {
namespace {

using nlohmann::json;

// A member of `parameters`, or null.
const json* parameter(const json& object, const char* key) {
  const auto parameters = object.find("parameters");
  if (parameters == object.end() || parameters->is_null()) return nullptr;
  if (!parameters->is_object()) fail_input("parameters: expected an object");
  const auto found = parameters->find(key);
  return found == parameters->end() ? nullptr : &*found;
}

bool flag(const json& object, const char* key, bool usual) {
  const json* found = parameter(object, key);
  if (!found) return usual;
  if (!found->is_boolean()) fail_input("parameters.{}: expected true or false", key);
  return found->get<bool>();
}

// A number that is not negative, or `usual`.
uint64_t number(const json& object, const char* key, uint64_t usual) {
  const json* found = parameter(object, key);
  if (!found) return usual;
  if (!found->is_number_unsigned()) fail_input("parameters.{}: expected a whole number", key);
  return found->get<uint64_t>();
}

std::vector<int64_t> shape_of(const json& tensor) {
  const auto found = tensor.find("shape");
  if (found == tensor.end() || !found->is_array() || found->empty() || found->size() > 8)
    fail_input("shape: expected a list of dimensions");
  std::vector<int64_t> shape;
  for (const json& n : *found) {
    if (!n.is_number_unsigned() || n.get<uint64_t>() > (1u << 30))
      fail_input("shape: a dimension is out of range");
    shape.push_back(n.get<int64_t>());
  }
  return shape;
}

// Takes the tensor's bytes from what is behind the JSON.
std::string_view take(std::string_view& binary, uint64_t bytes) {
  if (bytes > binary.size())
    fail_input("binary_data_size: {} bytes are announced, {} are there", bytes, binary.size());
  const std::string_view out = binary.substr(0, bytes);
  binary.remove_prefix(bytes);
  return out;
}

// Elements of a BYTES tensor: four bytes of length, then as many bytes.
void take_elements(std::string_view bytes, size_t count, OipRequest& out) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t size = 0;
    if (bytes.size() < sizeof size) fail_input("image: the data ends before element {}", i);
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    out.images.push_back(take(bytes, size));
  }
  if (!bytes.empty()) fail_input("image: {} bytes are left over", bytes.size());
}

void read_encoded(const json& tensor, std::string_view& binary, size_t count, OipRequest& out) {
  if (parameter(tensor, "binary_data_size"))
    return take_elements(take(binary, number(tensor, "binary_data_size", 0)), count, out);
  const auto data = tensor.find("data");
  if (data == tensor.end() || !data->is_array() || data->size() != count)
    fail_input("image: expected {} elements of data", count);
  for (const json& each : *data) {
    auto bytes = each.is_string() ? from_base64(each.get_ref<const std::string&>()) : std::nullopt;
    if (!bytes) fail_input("image: an element of data is not base64");
    out.owned.push_back(std::move(*bytes));
  }
  out.images.assign(out.owned.begin(), out.owned.end());
}

// Numbers as lists in lists, row by row.
void flatten(const json& data, std::string& out, size_t limit) {
  if (data.is_array()) {
    for (const json& each : data) flatten(each, out, limit);
    return;
  }
  if (!data.is_number_unsigned() || data.get<uint64_t>() > 255)
    fail_input("pixels: an element is not a number from 0 to 255");
  if (out.size() == limit) fail_input("pixels: more data than the shape has");
  out += static_cast<char>(data.get<uint64_t>());
}

void read_pixels(const json& tensor, std::string_view& binary, size_t count, size_t each,
                 OipRequest& out) {
  std::string_view all;
  if (parameter(tensor, "binary_data_size")) {
    all = take(binary, number(tensor, "binary_data_size", 0));
  } else {
    const auto data = tensor.find("data");
    if (data == tensor.end()) fail_input("pixels: data is missing");
    flatten(*data, out.owned.emplace_back(), count * each);
    all = out.owned.back();
  }
  if (all.size() != count * each)
    fail_input("pixels: the shape has {} bytes, the data {}", count * each, all.size());
  for (size_t i = 0; i < count; ++i) out.images.push_back(all.substr(i * each, each));
}

void read_input(const json& tensor, std::string_view& binary, const OipShape& shape,
                size_t most_images, OipRequest& out) {
  const std::string name = text_of(tensor, "name", ""), type = text_of(tensor, "datatype", "");
  const std::vector<int64_t> dims = shape_of(tensor);
  const auto count = static_cast<size_t>(dims[0]);
  if (count == 0) fail_input("{}: there is no image", name);
  if (count > most_images) fail_input("a request has at most {} images", most_images);
  if (name == "image") {
    if (type != "BYTES") fail_input("image: the datatype is BYTES");
    if (dims.size() != 1) fail_input("image: the shape is [images]");
    return read_encoded(tensor, binary, count, out);
  }
  if (name != "pixels") fail_input("the inputs are image or pixels");
  if (type != "UINT8") fail_input("pixels: the datatype is UINT8");
  if (dims != std::vector<int64_t>{dims[0], shape.channels, shape.height, shape.width})
    fail_input("pixels: the shape is [images, {}, {}, {}]", shape.channels, shape.height,
               shape.width);
  out.decoded = true;
  const auto each = static_cast<size_t>(shape.channels * shape.height * shape.width);
  read_pixels(tensor, binary, count, each, out);
}

OipOutput read_output(const json& tensor, bool binary, const OipShape& shape) {
  OipOutput out{.name = text_of(tensor, "name", "")};
  if (out.name != "logits" && out.name != "features" && out.name != "labels")
    fail_input("the outputs are logits, features and labels");
  if (out.name != "features" && shape.classes == 0) fail_input("the model has no head");
  out.binary = flag(tensor, "binary_data", binary);
  out.classification = static_cast<int64_t>(std::min<uint64_t>(
      number(tensor, "classification", 0), static_cast<uint64_t>(shape.classes)));
  return out;
}

// Little-endian, as every processor here is.
void append_bytes(std::string& to, const OipResult& r) {
  to.append(reinterpret_cast<const char*>(r.numbers.data()), r.numbers.size() * sizeof(float));
  for (const std::string& text : r.texts) {
    const auto size = static_cast<uint32_t>(text.size());
    to.append(reinterpret_cast<const char*>(&size), sizeof size);
    to += text;
  }
}

}  // namespace

OipRequest parse_oip(std::string_view body, size_t json_bytes, const OipShape& shape,
                     size_t most_images) {
  if (json_bytes > body.size())
    fail_input("Inference-Header-Content-Length is larger than the body");
  const json request = parse_json_body(body.substr(0, json_bytes));
  std::string_view binary = body.substr(json_bytes);
  OipRequest out;
  out.id = text_of(request, "id", "");
  out.timeout_seconds = 1e-6 * static_cast<double>(number(request, "timeout", 0));
  out.priority = number(request, "priority", 0);
  const auto inputs = request.find("inputs");
  if (inputs == request.end() || !inputs->is_array() || inputs->size() != 1 ||
      !inputs->front().is_object())
    fail_input("inputs: expected one tensor, image or pixels");
  read_input(inputs->front(), binary, shape, most_images, out);
  if (!binary.empty()) fail_input("{} bytes behind the last tensor", binary.size());
  const bool all_binary = flag(request, "binary_data_output", false);
  const auto outputs = request.find("outputs");
  if (outputs != request.end() && !outputs->is_null()) {
    if (!outputs->is_array() || outputs->size() > 8) fail_input("outputs: expected a list");
    for (const json& each : *outputs) {
      if (!each.is_object()) fail_input("outputs: expected a list of objects");
      out.outputs.push_back(read_output(each, all_binary, shape));
    }
  }
  if (out.outputs.empty()) {
    out.outputs.push_back({.name = shape.classes > 0 ? "logits" : "features"});
    out.outputs.back().binary = all_binary;
  }
  return out;
}

OipAnswer write_oip(const std::string& model, const std::string& version, const std::string& id,
                    const std::vector<OipResult>& results) {
  std::string binary;
  JsonWriter json;
  json.begin_object().field("model_name", model).field("model_version", version);
  if (!id.empty()) json.field("id", id);
  json.key("outputs").begin_array();
  for (const OipResult& r : results) {
    json.begin_object().field("name", r.name).field("datatype", r.type).key("shape").begin_array();
    for (const int64_t n : r.shape) json.value(n);
    json.end_array();
    if (r.binary) {
      const size_t before = binary.size();
      append_bytes(binary, r);
      json.key("parameters")
          .begin_object()
          .field("binary_data_size", binary.size() - before)
          .end_object();
    } else {
      json.key("data").begin_array();
      for (const float x : r.numbers) json.value(x);
      for (const std::string& text : r.texts) json.value(text);
      json.end_array();
    }
    json.end_object();
  }
  json.end_array().end_object();
  OipAnswer answer{json.str(), 0};
  if (!binary.empty()) answer.json_bytes = answer.body.size(), answer.body += binary;
  return answer;
}

}  // namespace vitrum::serve
