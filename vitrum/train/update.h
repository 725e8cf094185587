// The second half of an optimiser step: it uses up the gradients that the first has added together.
#pragma once
#include <memory>
#include <vector>

#include "vitrum/runtime/program.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

class Update {
 public:
  // `segments`: the trained parameters, with the recipe's decay and factors of the learning rate.
  // `forward`: the graph that makes the gradients.
  Update(const Recipe& recipe, const std::vector<Segment>& segments, DType compute,
         ParamStore& store, const Graph& forward);

  // SAM: puts weights and state aside, moves the weights up the gradient, and clears it. The next
  // run() starts by bringing both back.
  void perturb(const Program::Trace& trace = {}) { run_program(*perturb_, trace); }

  // Clips, moves the weights, averages them and clears the gradients; `step` counts from 0.
  void run(double lr, int64_t step, const Program::Trace& trace = {}) {
    upload(lr, step);
    run_program(*update_, trace);
  }
  // For who runs the program in another way.
  void upload(double lr, int64_t step);
  Program& program() { return *update_; }

  TensorView norm() const;  // of the gradients that run() has used, before clipping

 private:
  Hyper hyper_;
  double ema_;
  Graph perturb_graph_, graph_;
  Value rates_, clip_;
  std::unique_ptr<Program> perturb_, update_;
};

}  // namespace vitrum
