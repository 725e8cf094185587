// The second half of an optimiser step: it uses up the gradients that the first has added together.
#pragma once
#include <memory>
#include <vector>

#include "vitrum/runtime/link.h"
#include "vitrum/runtime/program.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/work_share.h"

namespace vitrum {

class Update {
 public:
  // `share`: the trained parameters, with the recipe's decay and factors of the learning rate, that
  // this process moves; the others' come through `link` from their processes. `forward`: the graph
  // that makes the gradients.
  Update(const Recipe& recipe, const WorkShare& share, DType compute, ParamStore& store,
         const Graph& forward, Link* link);

  // SAM: puts weights and state aside, moves the weights up the gradient, and clears it. The next
  // run() starts by bringing both back.
  void perturb(const Program::Trace& trace = {}) { run_program(*perturb_, trace); }

  // Clips, moves the weights, averages them and clears the gradients; `step` counts from 0.
  void run(double lr, int64_t step, const Program::Trace& trace = {}) {
    upload(lr, step);
    run_program(*update_, trace);
  }
  // For who runs it in another way: what run() uploads, the program with one process, and with a
  // link all kernels of perturb() or run().
  void upload(double lr, int64_t step);
  Program& program() { return *update_; }
  void add_perturb(Kernels& to) { add(to, *perturb_, perturb_norms_); }
  void add_update(Kernels& to) { add(to, *update_, norms_); }

  TensorView norm() const;  // of the gradients that run() has used, before clipping

 private:
  // The global norm in a program: where it is, and how many kernels come before the sums of squares
  // of all processes are needed.
  struct Norms {
    Value norms;
    size_t kernels = 0;
  };
  class Recorder;
  void add(Kernels& to, const Program& program, const Norms& norms);
  void exchange(Kernels& to, const std::vector<TensorView>& parts) const;
  // Sums of squares are those of blocks, which any process may add up.
  bool in_blocks(const Recipe& recipe) const { return recipe.slices > 1 || link_; }

  const WorkShare& share_;
  Link* const link_;
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
