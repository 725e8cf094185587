// Ten steps of every optimiser against PyTorch and timm: tools/golden/optimizer_golden.py wrote
// them. And what SAM and Muon do in a training step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "vitrum/runtime/backends.h"
#include "vitrum/train/update.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using Json = nlohmann::json;

class Golden {
 public:
  Golden()
      : file_(VITRUM_SOURCE_DIR "/tests/golden/optimizers.safetensors"),
        runs(Json::parse(file_.metadata().at("golden")).at("runs")) {
    for (const TensorInfo& t : file_.tensors())
      if (t.name.starts_with("param."))
        params.push_back({.name = t.name.substr(6),
                          .shape = t.shape,
                          .init = {},
                          .decay = t.name.ends_with(".weight")});
  }
  std::vector<float> read(const std::string& name) const {
    const std::span<const std::byte> bytes = file_.bytes(file_.at(name));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  SafetensorsFile file_;

 public:
  const Json runs;
  std::vector<ParamSpec> params;
};

// The tensors of the file as a model, with the update that a recipe makes for it.
class Bench {
 public:
  Bench(const Golden& golden, const Json& run, Backend& backend)
      : golden_(golden),
        slope_(run.value("slope", 0.f)),
        graph_(declare(golden)),
        store_(graph_, backend) {
    for (const auto& [key, value] : run.items())
      if (key != "slope") set_key(recipe_, key, value.dump(), "golden");
    for (size_t i = 0; i < golden.params.size(); ++i) {
      const ParamSpec& p = golden.params[i];
      store_.write(i, golden.read("param." + p.name));
      segments_.push_back({.offset = store_.offset(i),
                           .size = p.shape.numel(),
                           .decay = p.decay ? static_cast<float>(recipe_.decay()) : 0.f});
    }
    share_ = WorkShare(nullptr, recipe_, segments_, store_.elements(Arena::kGrad));
    update_ = std::make_unique<Update>(recipe_, share_, DType::kF32, store_, graph_, nullptr);
  }

  void train(int steps = 10) {
    for (int step = 0; step < steps; ++step) {
      backward(step);
      if (recipe_.sam > 0) update_->perturb(), backward(step);
      update_->run(recipe_.lr, step);
    }
  }
  std::vector<float> read(size_t i) { return store_.read(i); }

 private:
  static Graph& declare(const Golden& golden) {
    static std::deque<Graph> graphs;  // a graph cannot be moved
    Graph& g = graphs.emplace_back();
    for (const ParamSpec& p : golden.params) g.param(p);
    return g;
  }

  void backward(int step) {
    for (size_t i = 0; i < golden_.params.size(); ++i) {
      std::vector<float> g =
          golden_.read("grad." + std::to_string(step) + "." + golden_.params[i].name);
      const std::vector<float> w = store_.read(i);
      for (size_t k = 0; k < g.size(); ++k) g[k] += slope_ * w[k];
      store_.write(i, g, Arena::kGrad);
    }
  }

  const Golden& golden_;
  float slope_;
  Graph& graph_;
  ParamStore store_;
  Recipe recipe_;
  std::vector<Segment> segments_;
  WorkShare share_;  // all of it
  std::unique_ptr<Update> update_;
};

// How far apart, as a share of how far the run has come.
double distance(const std::vector<float>& a, const std::vector<float>& b,
                const std::vector<float>& start) {
  double apart = 0, way = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i] - b[i]), 2);
    way += std::pow(static_cast<double>(b[i] - start[i]), 2);
  }
  return std::sqrt(apart / way);
}

class OptimizerGolden : public testing::TestWithParam<const char*> {};

TEST_P(OptimizerGolden, TenSteps) {
  const Golden golden;
  const auto backend = make_backend({.device = GetParam(), .threads = 2});
  for (const auto& [name, run] : golden.runs.items()) {
    Bench bench(golden, run, *backend);
    bench.train();
    // PyTorch's own Muon rounds to bf16 inside.
    const double tolerance = name == "muon_torch" ? 0.03 : 1e-4;
    for (size_t i = 0; i < golden.params.size(); ++i) {
      const std::string& param = golden.params[i].name;
      EXPECT_LE(distance(bench.read(i), golden.read("after." + name + "." + param),
                         golden.read("param." + param)),
                tolerance)
          << name << " " << param;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Device, OptimizerGolden, testing::Values("reference", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

// Of the rows (of the columns) of two matrices, each with each.
std::vector<double> inner_products(const std::vector<double>& a, const std::vector<double>& b,
                                   int64_t rows, int64_t columns, bool of_rows) {
  const int64_t n = of_rows ? rows : columns, depth = of_rows ? columns : rows;
  const auto at = [&](const std::vector<double>& m, int64_t line, int64_t k) {
    return m[static_cast<size_t>(of_rows ? line * columns + k : k * columns + line)];
  };
  std::vector<double> all;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += at(a, i, k) * at(b, j, k);
      all.push_back(sum);
    }
  return all;
}

// Muon gives the matrices' directions singular values near one, and leaves their spaces alone.
TEST(Optimizer, MuonMakesNearlyOrthogonalSteps) {
  const Golden golden;
  const auto backend = make_backend({.device = "cpu", .threads = 2});
  Json run = golden.runs.at("muon");
  run["weight_decay"] = 0;
  Bench bench(golden, run, *backend);
  bench.train(1);
  for (size_t i = 0; i < golden.params.size(); ++i) {
    const ParamSpec& p = golden.params[i];
    if (!p.name.starts_with("blocks.") || !p.decay) continue;
    const std::vector<float> before = golden.read("param." + p.name), after = bench.read(i);
    const int64_t rows = p.shape[0], columns = p.shape[1];
    const double length =
        0.02 * std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    std::vector<double> step, gradient;  // down the slope, in units of the length
    const std::vector<float> slope = golden.read("grad.0." + p.name);
    for (size_t k = 0; k < after.size(); ++k) {
      step.push_back(static_cast<double>(before[k] - after[k]) / length);
      gradient.push_back(static_cast<double>(slope[k]));
    }
    // Of the shorter side: its lines are about as long as one another, and at right angles.
    const bool wide = columns >= rows;
    const auto own = inner_products(step, step, rows, columns, wide);
    const int64_t rank = std::min(rows, columns);
    double off = 0;
    for (int64_t i = 0; i < rank; ++i)
      for (int64_t k = 0; k < rank; ++k)
        off += std::pow(own[static_cast<size_t>(i * rank + k)] - (i == k ? 1 : 0), 2);
    EXPECT_LT(std::sqrt(off / static_cast<double>(rank)), 0.45) << p.name;
    // U f(S) V' times the gradient U S V' is symmetric, and goes its way.
    const auto with = inner_products(step, gradient, rows, columns, wide);
    double skew = 0, size = 0, trace = 0;
    for (int64_t i = 0; i < rank; ++i) {
      trace += with[static_cast<size_t>(i * rank + i)];
      for (int64_t k = 0; k < rank; ++k) {
        const double a = with[static_cast<size_t>(i * rank + k)],
                     b = with[static_cast<size_t>(k * rank + i)];
        skew += (a - b) * (a - b), size += a * a;
      }
    }
    EXPECT_LT(std::sqrt(skew / size), 1e-3) << p.name;
    EXPECT_GT(trace, 0) << p.name;
  }
}

}  // namespace
}  // namespace vitrum
