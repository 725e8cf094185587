// The second half of an optimiser step: it uses up the gradients that the first has added together.
#pragma once
#include <memory>
#include <vector>

#include "vitrum/runtime/program.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/work_share.h"

namespace vitrum {

class Update {
 public:
  // `share`: the trained parameters, with the recipe's decay and factors of the learning rate, that
  // this process moves; the others' come from their processes. `forward`: the graph that makes the
  // gradients.
  Update(const Recipe& recipe, const WorkShare& share, DType compute, ParamStore& store,
         const Graph& forward);

  // SAM: puts weights and state aside, moves the weights up the gradient, and clears it. The next
  // run() starts by bringing both back.
  void perturb(const Program::Trace& trace = {}) { run(*perturb_, perturb_norms_, trace); }

  // Clips, moves the weights, averages them and clears the gradients; `step` counts from 0.
  void run(double lr, int64_t step, const Program::Trace& trace = {}) {
    upload(lr, step);
    run(*update_, norms_, trace);
  }
  // For who runs the program in another way, with one process.
  void upload(double lr, int64_t step);
  Program& program() { return *update_; }

  TensorView norm() const;  // of the gradients that run() has used, before clipping

 private:
  // The global norm in a program: where it is, and how many kernels come before the sums of squares
  // of all processes are needed.
  struct Norms {
    Value norms;
    size_t kernels = 0;
  };
  class Recorder;
  void run(Program& program, const Norms& norms, const Program::Trace& trace);
  void share_weights();

  const WorkShare& share_;
  ParamStore& store_;
  Hyper hyper_;
  double ema_;
  Buffer squares_;
  TensorView squares(Stretch blocks) const;
  Graph perturb_graph_, graph_;
  Value rates_;
  Norms perturb_norms_, norms_;
  Graph round_graph_;
  std::unique_ptr<Program> perturb_, update_, round_;  // round_: of others' weights, to bf16
};

}  // namespace vitrum
