// Our matrix products against oneDNN's, one thread each, on the shapes a ViT trains with: y = x
// w^T, dx = dy w and dw += dy^T x, from the plain row-major layouts the weights and activations
// have. Rates are in FLOP/s.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "vitrum/cpu/cpu.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/runtime/program.h"

namespace vitrum {
namespace {

void count_flops(benchmark::State& state, double products) {
  const double flops =
      products * 2.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
  state.counters["flops"] =
      benchmark::Counter(flops * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

// Vitrum: Linear, or LinearBwd with both gradients.
void ours(benchmark::State& state, bool backward) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 1});
  Graph g(Mode::kTraining);
  const Value x = g.input("x", {m, k});
  Value y = linear(Scope(g, "fc"), x, n, {.bias = false});
  ParamStore store(g, *backend);
  store.initialize(1);
  const Value w(&g, g.nodes.back().in[1]), dy = g.input("dy", y.shape());
  if (backward) {
    g.nodes.pop_back();
    const Value dx = g.add_value({.name = "dx", .shape = x.shape()});
    const Value dw = g.add_value({.name = "dw",
                                  .shape = w.shape(),
                                  .role = Role::kGrad,
                                  .exact = true,
                                  .param = g.info(w).param});
    g.nodes.push_back({.op = LinearBwd{},
                       .in = {dy.id(), x.id(), w.id(), kAbsent, kAbsent},
                       .out = {dx.id(), dw.id(), kAbsent}});
    y = dx;
  }
  Program program(g, std::span(&y, 1), store);
  for (auto _ : state) program.run();
  count_flops(state, backward ? 2 : 1);
}

using Dims = dnnl::memory::dims;

// C (m, n) = A B (+ C), through one primitive made for one thread.
class OneDnnProduct {
 public:
  OneDnnProduct(const dnnl::engine& engine, Dims a, Dims a_strides, Dims b, Dims b_strides,
                bool accumulate)
      : stream_(engine) {
    using dnnl::memory;
    const auto f32 = memory::data_type::f32;
    const memory::desc ad(a, f32, a_strides), bd(b, f32, b_strides),
        cd({a[0], b[1]}, f32, Dims{b[1], 1});
    dnnl::primitive_attr attr;
    if (accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.f);
      attr.set_post_ops(ops);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc pd(engine, ad, bd, cd, attr);
#else
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(ad, bd, cd), attr, engine);
#endif
    matmul_ = dnnl::matmul(pd);
    args_ = {{DNNL_ARG_SRC, memory(ad, engine)},
             {DNNL_ARG_WEIGHTS, memory(bd, engine)},
             {DNNL_ARG_DST, memory(cd, engine)}};
  }
  void run() {
    matmul_.execute(stream_, args_);
    stream_.wait();
  }

 private:
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> args_;
};

void one_dnn(benchmark::State& state, bool backward) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  omp_set_num_threads(1);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  std::vector<OneDnnProduct> products;
  if (backward) {
    products.emplace_back(engine, Dims{m, n}, Dims{n, 1}, Dims{n, k}, Dims{k, 1}, false);
    products.emplace_back(engine, Dims{n, m}, Dims{1, n}, Dims{m, k}, Dims{k, 1}, true);
  } else {
    products.emplace_back(engine, Dims{m, k}, Dims{k, 1}, Dims{k, n}, Dims{1, k}, false);
  }
  for (auto _ : state)
    for (OneDnnProduct& product : products) product.run();
  count_flops(state, backward ? 2 : 1);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"m", "n", "k"})->Unit(benchmark::kMillisecond);
  b->Args({2176, 2048, 64})->Args({2176, 64, 2048});  // vit_mnist, batch 128
  b->Args({1576, 576, 192})->Args({1576, 768, 192})->Args({1576, 192, 768});     // ViT-Ti, batch 8
  b->Args({2080, 2304, 768})->Args({2080, 3072, 768})->Args({2080, 768, 3072});  // minViT, batch 32
}
BENCHMARK_CAPTURE(ours, forward, false)->Apply(shapes);
BENCHMARK_CAPTURE(one_dnn, forward, false)->Apply(shapes);
BENCHMARK_CAPTURE(ours, backward, true)->Apply(shapes);
BENCHMARK_CAPTURE(one_dnn, backward, true)->Apply(shapes);

}  // namespace
}  // namespace vitrum
