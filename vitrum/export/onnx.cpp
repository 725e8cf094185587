#include "vitrum/export/onnx.h"

#include <fmt/format.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <exception>
#include <filesystem>
#include <optional>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/export/onnx_ops.h"

namespace vitrum {
namespace {

constexpr int64_t kOpset = 17, kIrVersion = 8;  // 8 belongs to opset 17
constexpr int64_t kMostInline = 2'000'000'000;  // bytes of weights; protobuf ends at 2^31 - 1
constexpr size_t kLeastExternal = 1024;         // bytes: smaller tensors stay in the model
// What maps into memory on every system starts at a multiple of Windows' 64 KiB; the rest is
// aligned for vectors.
constexpr size_t kLargeTensor = 1 << 20, kLargeAlignment = 1 << 16, kSmallAlignment = 64;

std::string_view as_text(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// The weights' own file: tensors one after another, each at an aligned offset.
class DataFile {
 public:
  explicit DataFile(const std::string& path)
      : file_(path), location_(std::filesystem::path(path).filename().string()) {}

  void append(onnx::TensorProto& tensor, std::span<const float> values) {
    const size_t align = values.size_bytes() >= kLargeTensor ? kLargeAlignment : kSmallAlignment;
    const size_t offset = round_up(size_, align);
    file_.write(std::string(offset - size_, '\0'));
    file_.write(as_text(values));
    size_ = offset + values.size_bytes();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    const auto set = [&](const char* key, const std::string& value) {
      auto& entry = *tensor.add_external_data();
      entry.set_key(key), entry.set_value(value);
    };
    set("location", location_);  // relative to the model
    set("offset", std::to_string(offset));
    set("length", std::to_string(values.size_bytes()));
  }
  void commit() { file_.commit(); }
  size_t size() const { return size_; }

 private:
  AtomicFile file_;
  std::string location_;
  size_t size_ = 0;
};

std::string labels_json(const ModelSpec& spec) {
  JsonWriter json;
  json.begin_array();
  for (const std::string& label : spec.labels) json.value(label);
  return json.end_array().str();
}

// What to do with an image file before the model sees it; `in_graph`: the model normalises itself.
std::string preprocessing_json(const ModelSpec& spec, bool in_graph) {
  const Preprocessing& p = spec.preprocess;
  JsonWriter json;
  json.begin_object().key("input_size").begin_array();
  json.value(spec.config.channels()).value(p.height).value(p.width).end_array();
  json.field("interpolation", p.interpolation)
      .field("crop_pct", p.crop_pct)
      .field("crop_mode", p.crop_mode);
  if (p.resize > 0) json.field("resize", p.resize);
  const auto per_channel = [&](const char* key, const std::vector<float>& list, float fallback) {
    json.key(key).begin_array();
    for (size_t c = 0; c < static_cast<size_t>(spec.config.channels()); ++c)
      json.value(list.empty() ? fallback : list[c % list.size()]);
    json.end_array();
  };
  per_channel("mean", p.mean, 0), per_channel("std", p.std, 1);
  return json.field("normalize_in_graph", in_graph).end_object().str();
}

void describe(onnx::ModelProto& model, const ModelSpec& spec, bool in_graph) {
  model.set_ir_version(kIrVersion);
  model.add_opset_import()->set_version(kOpset);
  model.mutable_opset_import(0)->set_domain("");
  model.set_producer_name("vitrum");
  model.set_producer_version(VITRUM_VERSION);
  model.set_doc_string(fmt::format(
      "{}: pixel_values are {}", spec.architecture,
      in_graph ? "uint8 NCHW pixels" : "float32 NCHW, (pixel / 255 - mean) / std of the metadata"));
  const auto property = [&](const char* key, const std::string& value) {
    auto& entry = *model.add_metadata_props();
    entry.set_key(key), entry.set_value(value);
  };
  property("architecture", spec.architecture);
  property("preprocessing", preprocessing_json(spec, in_graph));
  if (!spec.labels.empty()) property("labels", labels_json(spec));
}

// protobuf's streams write in destructors, through which no exception may pass: error() has it.
class ToFile final : public google::protobuf::io::CopyingOutputStream {
 public:
  explicit ToFile(AtomicFile& file) : file_(file) {}
  bool Write(const void* data, int size) override {
    try {
      file_.write(std::string_view(static_cast<const char*>(data), static_cast<size_t>(size)));
      return true;
    } catch (...) {
      error_ = std::current_exception();
      return false;
    }
  }
  const std::exception_ptr& error() const { return error_; }

 private:
  AtomicFile& file_;
  std::exception_ptr error_;
};

// Piece by piece, so that the text of a large model is never in memory beside it.
void write_model(AtomicFile& file, const std::string& path, const onnx::ModelProto& model) {
  ToFile target(file);
  google::protobuf::io::CopyingOutputStreamAdaptor stream(&target, 1 << 20);
  const bool written = model.SerializeToZeroCopyStream(&stream) && stream.Flush();
  if (target.error()) std::rethrow_exception(target.error());
  if (!written) fail("{}: protobuf cannot write the model", path);
}

// An older model goes before its weights do: with those of another it would answer wrongly. An
// empty one in its place says whose the weights are, should they be all that a killed process left.
void commit(AtomicFile& model, const std::string& path, std::optional<DataFile>& data) {
  if (data) write_file_atomic(path, ""), data->commit();
  model.commit();
}

}  // namespace

OnnxSummary write_onnx(const std::string& path, const Graph& g, Value result, ParamStore& store,
                       const ModelSpec& spec, const OnnxOptions& options) {
  AtomicFile file(path);
  std::optional<DataFile> data;
  if (options.external_data || store.parameter_count() * 4 > kMostInline)
    data.emplace(path + ".data");
  onnx::ModelProto model;
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.set_name(spec.architecture);
  OnnxGraph out(graph, [&](onnx::TensorProto& tensor, std::span<const float> values) {
    if (data && values.size_bytes() >= kLeastExternal)
      data->append(tensor, values);
    else
      tensor.set_raw_data(std::string(as_text(values)));
  });

  bool in_graph = false;
  for (const ValueInfo& value : g.values)
    if (value.role == Role::kInput) {
      out.input(value.name, value.shape, value.dtype);
      in_graph |= value.dtype == DType::kU8;
    }
  const std::string result_name = spec.config.classes() > 0 ? "logits" : "features";
  translate(g, result, result_name, store, out);
  out.output(result_name, result.shape());
  describe(model, spec, in_graph);

  write_model(file, path, model);
  commit(file, path, data);
  return {.opset = kOpset,
          .nodes = graph.node_size(),
          .bytes = static_cast<int64_t>(model.ByteSizeLong() + (data ? data->size() : 0))};
}

}  // namespace vitrum
