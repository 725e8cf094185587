// From the closed op set to ONNX nodes. Internal to export/.
#pragma once
#include "vitrum/export/onnx_graph.h"
#include "vitrum/graph/graph.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// Translates every node of `g` in order; the value `result` is called `result_name`. Fails naming
// an op that exists only in training.
void translate(const Graph& g, Value result, const std::string& result_name, ParamStore& store,
               OnnxGraph& out);

}  // namespace vitrum
