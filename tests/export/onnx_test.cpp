// Exported models, read back with the generated classes. tools/check/check_onnx.py compares their
// results with ONNX Runtime's.
#include "vitrum/export/onnx.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/file_calls.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/files.h"
#include "vitrum/export/onnx.pb.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/models/vit.h"
#include "vitrum/runtime/backends.h"

namespace vitrum {
namespace {

using nlohmann::json;
using onnx::TensorProto;

ModelSpec tiny_spec() {
  ModelSpec spec{
      .architecture = "vit_tiny", .config = ViTConfig{}, .preprocess = {}, .labels = {"a", "b\""}};
  spec.config = ViTConfig{.patch_h = 4,
                          .patch_w = 2,
                          .channels = 3,
                          .width = 16,
                          .depth = 2,
                          .heads = 2,
                          .mlp_width = 24,
                          .classes = 2,
                          .layer_scale = 0.1f};
  set_image_size(spec, 8, 6);
  spec.preprocess.mean = {0.5f, 0.25f, 0.125f}, spec.preprocess.std = {0.5f};
  return spec;
}

struct Exported {
  explicit Exported(const ModelSpec& spec, const OnnxOptions& options = {}, bool pixels = false) {
    const ViTConfig& c = vit_of(spec);
    Value image = graph.input("pixel_values", {1, c.channels, c.image_h, c.image_w},
                              pixels ? DType::kU8 : DType::kF32);
    if (pixels) image = normalize(image, spec.preprocess.mean, spec.preprocess.std);
    graph_result = vit(Scope(graph), image, c);
    store.emplace(graph, *backend);
    store->initialize(3);
    summary = write_onnx(dir / "m.onnx", graph, graph_result, *store, spec, options);
    EXPECT_TRUE(model.ParseFromString(read_file(dir / "m.onnx")));
  }

  const TensorProto& tensor(const std::string& name) const {
    for (const TensorProto& t : model.graph().initializer())
      if (t.name() == name) return t;
    ADD_FAILURE() << name;
    return TensorProto::default_instance();
  }
  std::vector<float> values(const std::string& name) const {
    const std::string& bytes = tensor(name).raw_data();
    std::vector<float> v(bytes.size() / 4);
    std::memcpy(v.data(), bytes.data(), bytes.size());
    return v;
  }
  std::string property(const std::string& key) const {
    for (const auto& entry : model.metadata_props())
      if (entry.key() == key) return entry.value();
    return "";
  }

  TempDir dir;
  Graph graph;
  Value graph_result;
  std::unique_ptr<Backend> backend = make_backend({.device = "reference"});
  std::optional<ParamStore> store;
  OnnxSummary summary;
  onnx::ModelProto model;
};

std::vector<int64_t> dims_of(const TensorProto& t) { return {t.dims().begin(), t.dims().end()}; }

std::string shape_of(const onnx::ValueInfoProto& value) {
  std::string text;
  for (const auto& dim : value.type().tensor_type().shape().dim())
    text += (text.empty() ? "" : ",") +
            (dim.has_dim_param() ? dim.dim_param() : std::to_string(dim.dim_value()));
  return text;
}

// Every operand is there before it is used, no name is given twice, the output is made.
void expect_well_formed(const Exported& e) {
  const onnx::GraphProto& g = e.model.graph();
  std::set<std::string> known;
  for (const TensorProto& t : g.initializer()) {
    EXPECT_TRUE(known.insert(t.name()).second) << t.name();
    int64_t size = t.data_type() == TensorProto::FLOAT ? 4 : 8;
    for (const int64_t dim : t.dims()) size *= dim;
    if (t.data_location() == TensorProto::DEFAULT) {
      EXPECT_EQ(static_cast<int64_t>(t.raw_data().size()), size) << t.name();
    }
  }
  for (const auto& input : g.input()) EXPECT_TRUE(known.insert(input.name()).second);
  for (const onnx::NodeProto& node : g.node()) {
    for (const std::string& name : node.input()) EXPECT_TRUE(known.contains(name)) << name;
    for (const std::string& name : node.output()) EXPECT_TRUE(known.insert(name).second) << name;
  }
  for (const auto& output : g.output()) EXPECT_TRUE(known.contains(output.name()));
  for (const ParamSpec& param : e.graph.params) {
    int64_t size = 1;
    for (const int64_t dim : e.tensor(param.name).dims()) size *= dim;
    EXPECT_EQ(size, param.shape.numel()) << param.name;
  }
}

std::string text_of(const onnx::AttributeProto& a) {
  std::string text = a.name() + "=";
  switch (a.type()) {
    case onnx::AttributeProto::FLOAT: return text + fmt::format("{}", a.f());
    case onnx::AttributeProto::INT: return text + std::to_string(a.i());
    default: break;
  }
  for (const int64_t n : a.ints()) text += std::to_string(n) + ",";
  return text;
}

// "Op name=value ..." of every node that has attributes, each once.
std::set<std::string> attributes_of(const onnx::ModelProto& model) {
  std::set<std::string> all;
  for (const onnx::NodeProto& node : model.graph().node()) {
    std::string text = node.op_type();
    for (const onnx::AttributeProto& a : node.attribute()) text += " " + text_of(a);
    if (node.attribute_size() > 0) all.insert(text);
  }
  return all;
}

TEST(Onnx, AFullDiskIsAnError) {
  const FileSizeLimit limit(4000);
  EXPECT_ERROR(Exported{tiny_spec()}, ErrorKind::kExhausted, "m.onnx");
}

TEST(Onnx, SaysWhatItIs) {
  ModelSpec spec = tiny_spec();
  spec.preprocess.resize = 11;
  const Exported e(spec);
  EXPECT_EQ(e.model.ir_version(), 8);
  EXPECT_EQ(e.model.opset_import(0).version(), 17);
  EXPECT_EQ(e.model.producer_name(), "vitrum");
  EXPECT_EQ(e.summary.opset, 17);
  EXPECT_EQ(e.summary.nodes, e.model.graph().node_size());
  EXPECT_EQ(e.summary.bytes, static_cast<int64_t>(read_file(e.dir / "m.onnx").size()));
  EXPECT_EQ(json::parse(e.property("labels")), json({"a", "b\""}));
  const json p = json::parse(e.property("preprocessing"));
  EXPECT_EQ(p["input_size"], json({3, 8, 6}));
  EXPECT_EQ(p["mean"], json({0.5, 0.25, 0.125}));
  EXPECT_EQ(p["std"], json({0.5, 0.5, 0.5}));
  EXPECT_EQ(p["resize"], 11);
  EXPECT_EQ(p["normalize_in_graph"], false);
}

TEST(Onnx, BatchIsDynamic) {
  const Exported e(tiny_spec());
  expect_well_formed(e);
  const onnx::GraphProto& g = e.model.graph();
  ASSERT_EQ(g.input_size(), 1);
  EXPECT_EQ(g.input(0).name(), "pixel_values");
  EXPECT_EQ(g.input(0).type().tensor_type().elem_type(), TensorProto::FLOAT);
  EXPECT_EQ(shape_of(g.input(0)), "batch,3,8,6");
  ASSERT_EQ(g.output_size(), 1);
  EXPECT_EQ(g.output(0).name(), "logits");
  EXPECT_EQ(shape_of(g.output(0)), "batch,2");
  // No shape in the graph may hold the one image that was traced.
  for (const TensorProto& t : g.initializer())
    if (t.name().starts_with("list.") && dims_of(t)[0] > 2) {
      EXPECT_TRUE(t.name().starts_with("list.0,")) << t.name();
    }
}

TEST(Onnx, WeightsAreTheModels) {
  Exported e(tiny_spec());
  const auto stored = [&](const std::string& name) {
    return e.store->read(static_cast<size_t>(e.store->index(name)));
  };
  for (const char* name : {"blocks.1.norm2.weight", "pos_embed", "cls_token", "head.weight",
                           "blocks.0.ls1.gamma", "patch_embed.proj.weight"})
    EXPECT_EQ(e.values(name), stored(name)) << name;
  EXPECT_EQ(dims_of(e.tensor("patch_embed.proj.weight")), (std::vector<int64_t>{16, 3, 4, 2}));
  // (out, in) is stored as (in, out).
  EXPECT_EQ(dims_of(e.tensor("blocks.0.mlp.fc1.weight")), (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(e.values("blocks.0.mlp.fc1.weight")[1], stored("blocks.0.mlp.fc1.weight")[16]);
}

TEST(Onnx, PatchesInChannelLastOrderBecomeAConvolutionToo) {
  ModelSpec spec = tiny_spec();
  vit_of(spec).patch_order = PatchOrder::kChannelLast;
  Exported e(spec);
  expect_well_formed(e);
  const auto kernel = e.values("patch_embed.proj.weight");
  const auto rows = e.store->read(static_cast<size_t>(e.store->index("patch_embed.proj.weight")));
  for (size_t o = 0; o < 16; ++o)
    for (size_t c = 0; c < 3; ++c)
      for (size_t p = 0; p < 8; ++p)
        ASSERT_EQ(kernel[(o * 3 + c) * 8 + p], rows[(o * 8 + p) * 3 + c]);
}

TEST(Onnx, TakesPixelsWhereAsked) {
  const Exported e(tiny_spec(), {}, /*pixels=*/true);
  expect_well_formed(e);
  EXPECT_EQ(e.model.graph().input(0).type().tensor_type().elem_type(), TensorProto::UINT8);
  EXPECT_EQ(e.model.graph().node(0).op_type(), "Cast");
  EXPECT_EQ(json::parse(e.property("preprocessing"))["normalize_in_graph"], true);
  EXPECT_FLOAT_EQ(e.values("normalize.scale")[0], 2 / 255.f);
  EXPECT_EQ(e.values("normalize.shift"), (std::vector<float>{-1, -0.5f, -0.25f}));
}

TEST(Onnx, ExternalDataIsAlignedAndComplete) {
  const Exported inside(tiny_spec());
  ModelSpec spec = tiny_spec();
  const Exported e(spec, {.external_data = true});
  expect_well_formed(e);
  const std::string data = read_file(e.dir / "m.onnx.data");
  EXPECT_EQ(e.summary.bytes,
            static_cast<int64_t>(read_file(e.dir / "m.onnx").size() + data.size()));
  int external = 0;
  for (const TensorProto& t : e.model.graph().initializer()) {
    const std::string& expected = inside.tensor(t.name()).raw_data();
    if (t.data_location() != TensorProto::EXTERNAL) {
      EXPECT_EQ(t.raw_data(), expected);
      EXPECT_LT(expected.size(), 1024u);
      continue;
    }
    ++external;
    std::map<std::string, std::string> where;
    for (const auto& entry : t.external_data()) where[entry.key()] = entry.value();
    EXPECT_EQ(where["location"], "m.onnx.data");
    const size_t offset = std::stoul(where["offset"]), length = std::stoul(where["length"]);
    EXPECT_EQ(offset % 64, 0u);
    EXPECT_EQ(data.substr(offset, length), expected) << t.name();
  }
  EXPECT_GT(external, 4);
}

// Killed between its two files, it leaves no model rather than one with the weights of another.
TEST(Onnx, AModelThatIsReplacedNeverHasOtherWeights) {
  Exported e(tiny_spec(), {.external_data = true});
  std::vector<std::string> replaced;
  const test::FileCalls calls([&](const std::string& name) {
    replaced.push_back(name);
    if (name == "m.onnx.data") {
      EXPECT_EQ(std::filesystem::file_size(e.dir / "m.onnx"), 0u);
    }
  });
  write_onnx(e.dir / "m.onnx", e.graph, e.graph_result, *e.store, tiny_spec(),
             {.external_data = true});
  EXPECT_EQ(replaced, (std::vector<std::string>{"m.onnx", "m.onnx.data", "m.onnx"}));
}

TEST(Onnx, EveryKindOfModel) {
  const auto with = [](auto change) {
    ModelSpec spec = tiny_spec();
    change(vit_of(spec));
    const Exported e(spec);
    expect_well_formed(e);
    return e.model.graph().output(0).name() + " " + shape_of(e.model.graph().output(0));
  };
  EXPECT_EQ(with([](ViTConfig& c) { c.classes = 0; }), "features batch,16");
  EXPECT_EQ(with([](ViTConfig& c) { c.pool = ViTPool::kMean; }), "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.pool = ViTPool::kMean, c.class_token = false; }),
            "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.pre_norm = false, c.act = Act::kRelu; }), "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.act = Act::kGeluTanh; }), "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.sincos_positions = true; }), "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.qkv_bias = c.mlp_bias = c.norm_bias = false; }),
            "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.depth = 0; }), "logits batch,2");
  EXPECT_EQ(with([](ViTConfig& c) { c.image_w += 1, c.floor_patches = true; }), "logits batch,2");
}

// The first half of a gated layer is activated, and multiplied with the second.
TEST(Onnx, TheFirstHalfIsTheGate) {
  ModelSpec spec = tiny_spec();
  vit_of(spec).gated = true, vit_of(spec).act = Act::kSilu;
  const Exported e(spec);
  expect_well_formed(e);
  // Where the slices start that a node takes.
  const auto starts_of = [&](const onnx::NodeProto& taker) {
    std::vector<int64_t> starts;
    for (const onnx::NodeProto& node : e.model.graph().node())
      if (node.op_type() == "Slice" && std::ranges::count(taker.input(), node.output(0)) > 0)
        std::memcpy(&starts.emplace_back(), e.tensor(node.input(1)).raw_data().data(), 8);
    return starts;
  };
  std::vector<int64_t> activated, multiplied;
  for (const onnx::NodeProto& node : e.model.graph().node())
    for (const int64_t start : starts_of(node)) {
      if (node.op_type() == "Sigmoid") activated.push_back(start);
      if (node.op_type() == "Mul" && start > 0) multiplied.push_back(start);
    }
  const int64_t half = vit_of(spec).mlp_width;
  EXPECT_EQ(activated, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(multiplied, (std::vector<int64_t>{half, half}));
}

TEST(Onnx, AttributesAreTheModels) {
  ModelSpec spec = tiny_spec();
  vit_of(spec).eps = 0.03f;
  const std::set<std::string> shared = {
      "Concat axis=0",         "Concat axis=1",           "Conv kernel_shape=4,2, strides=4,2,",
      "Gather axis=0",         "Gemm transB=1",           "LayerNormalization axis=-1 epsilon=0.03",
      "Shape start=0 end=1",   "Softmax axis=-1",         "Transpose perm=0,1,3,2,",
      "Transpose perm=0,2,1,", "Transpose perm=0,2,1,3,", "Transpose perm=2,0,3,1,4,"};
  std::set<std::string> token = shared, mean = shared;
  token.insert({"Gather axis=1", "Cast to=1"});
  EXPECT_EQ(attributes_of(Exported(spec, {}, /*pixels=*/true).model), token);
  vit_of(spec).pool = ViTPool::kMean;
  mean.insert("ReduceMean axes=1, keepdims=0");
  EXPECT_EQ(attributes_of(Exported(spec).model), mean);
}

TEST(Onnx, AttributesOfOtherFamilies) {
  const auto attributes = [](ModelConfig config) {
    const TempDir dir;
    Graph g;
    const Shape shape = {1, config.channels(), config.image_h(), config.image_w()};
    const Value result = model(Scope(g), g.input("pixel_values", shape), config);
    const auto backend = make_backend({.device = "reference"});
    ParamStore store(g, *backend);
    store.initialize(3);
    ModelSpec spec = tiny_spec();
    spec.config = config;
    write_onnx(dir / "m.onnx", g, result, store, spec, {});
    onnx::ModelProto file;
    EXPECT_TRUE(file.ParseFromString(read_file(dir / "m.onnx")));
    return attributes_of(file);
  };
  EXPECT_EQ(
      attributes(ResNetConfig{.image_h = 32,
                              .image_w = 32,
                              .classes = 2,
                              .depths = {1, 1, 1, 1},
                              .width = 4,
                              .eps = 0.03f}),
      (std::set<std::string>{
          "BatchNormalization epsilon=0.03", "Conv kernel_shape=1,1, strides=2,2, pads=0,0,0,0,",
          "Conv kernel_shape=3,3, strides=1,1, pads=1,1,1,1,",
          "Conv kernel_shape=3,3, strides=2,2, pads=1,1,1,1,",
          "Conv kernel_shape=7,7, strides=2,2, pads=3,3,3,3,", "Flatten axis=1", "Gemm transB=1",
          "MaxPool kernel_shape=3,3, strides=2,2, pads=1,1,1,1,"}));
  EXPECT_EQ(attributes(SwinConfig{.image_h = 16,
                                  .image_w = 16,
                                  .patch_h = 2,
                                  .patch_w = 2,
                                  .width = 8,
                                  .depths = {2},
                                  .heads = {2},
                                  .window_h = 4,
                                  .window_w = 4,
                                  .classes = 2,
                                  .eps = 0.03f}),
            (std::set<std::string>{
                "Conv kernel_shape=2,2, strides=2,2,", "Gather axis=0", "Gather axis=1",
                "Gemm transB=1", "LayerNormalization axis=-1 epsilon=0.03",
                "ReduceMean axes=1, keepdims=0", "Softmax axis=-1", "Transpose perm=0,1,3,2,",
                "Transpose perm=0,2,1,", "Transpose perm=0,2,1,3,", "Transpose perm=2,0,3,1,4,"}));
}

TEST(Onnx, TrainingAndFusedGraphsAreRefused) {
  const TempDir dir;
  ModelSpec spec = tiny_spec();
  vit_of(spec).drop_mlp = 0.1f;
  const auto backend = make_backend({.device = "reference"});
  const auto attempt = [&](Mode mode, bool fused, const char* name = "m.onnx") {
    Graph g(mode);
    const Value logits = model(Scope(g), g.input("pixel_values", {1, 3, 8, 6}), spec.config);
    if (fused) fuse(g);
    ParamStore store(g, *backend);
    write_onnx(dir / name, g, logits, store, spec);
  };
  EXPECT_ERROR(attempt(Mode::kTraining, false), ErrorKind::kFailed, "Dropout is a training op");
  EXPECT_ERROR(attempt(Mode::kInference, true), ErrorKind::kFailed, "fused");
  EXPECT_ERROR(attempt(Mode::kInference, false, "none/m.onnx"), ErrorKind::kInput, "none/m.onnx");
  EXPECT_EQ(dir.entries(), 0u);
}

}  // namespace
}  // namespace vitrum
