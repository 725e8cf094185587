// Models for other runtimes: a traced graph and its weights as an ONNX file.
#pragma once
#include <cstdint>
#include <string>

#include "vitrum/graph/graph.h"
#include "vitrum/runtime/params.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct OnnxOptions {
  // Weights go to `path`.data beside the file. Above 2 GB, protobuf's limit, they do anyway.
  bool external_data = false;
};

struct OnnxSummary {
  int64_t opset = 0, nodes = 0, bytes = 0;  // bytes: of all files together
};

// Writes opset 17 with a dynamic first dimension, "batch". `g` is traced in inference mode with one
// image and neither fused nor differentiated; `result` becomes the output. Weights are f32. The
// spec's labels and preprocessing go into the metadata. Files appear at once, the model last.
OnnxSummary write_onnx(const std::string& path, const Graph& g, Value result, ParamStore& store,
                       const ModelSpec& spec, const OnnxOptions& options = {});

}  // namespace vitrum
