// What a traced model goes through before it becomes a program of inference, by where it runs.
#pragma once
#include <span>

#include "vitrum/runtime/program.h"

namespace vitrum {

// Whether a card computes such a layer in e4m3 faster than in bf16. Few rows are bound by latency:
// there kernels of bf16 have the norms folded into them, and nothing has to be rounded. Narrow
// layers are bound by memory, and rounding costs what smaller operands save.
constexpr bool e4m3_pays(int64_t rows, int64_t columns, int64_t depth) {
  constexpr int64_t kLeastRows = 2048, kLeastWidth = 384;
  return rows >= kLeastRows && columns >= kLeastWidth && depth >= kLeastWidth;
}

// `keeps`, and where the backend is a card the layers of the graph that do not pay there. On
// processors, where fp8 shows what it costs, no batch is another.
KeepsFloat keeps_where_slower(const Graph& g, const Backend& backend, KeepsFloat keeps);

// Before fuse(): tokens that nobody reads are dropped, and of what is read of a few tokens alone
// nothing is rounded to e4m3, since it takes no time. `options.taps` are read as a whole.
void prepare(Graph& g, std::span<const Value> outputs, const Backend& backend,
             CompileOptions& options);

}  // namespace vitrum
