// Adds the gradients of a step's leaves together, each of which starts from zero.
#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "vitrum/runtime/program.h"
#include "vitrum/train/exchange_views.h"
#include "vitrum/train/leaf_tree.h"
#include "vitrum/train/work_share.h"

namespace vitrum {

class GradientTree {
 public:
  GradientTree(ParamStore& store, const WorkShare& share) : store_(store), share_(share) {}

  // After the backward pass of each leaf of this process, in order, and in the place of that of a
  // leaf without images: the gradients are put aside and cleared.
  void fold(int64_t leaf, const Program::Trace& trace = {});
  // After the last: what this process updates of the gradients is the sum over all leaves. With one
  // process it is so after its last fold().
  void sum();
  void forget() { stack_.clear(); }  // a step that was given up

 private:
  struct Sum {
    Graph graph;
    std::unique_ptr<Program> program;
  };
  Program& program(size_t waiting, size_t merged, bool last);
  TensorView slot(size_t i);
  TensorView slot_part(size_t i, Stretch elements);
  void make_total();

  ParamStore& store_;
  const WorkShare& share_;
  TreeStack stack_;
  std::vector<Buffer> slots_;  // what waits
  std::map<std::tuple<size_t, size_t, bool>, Sum> sums_;
  // With several processes: what each has added up, in its part of the arena.
  Buffer received_;
  std::vector<RankView> sends_, receives_;
  Sum total_;
};

// Running averages of a training graph move once a step, by what its first leaf says: they are put
// aside after it, and brought back when others have moved them too. Of several processes, the first
// has those that count.
class RunningAverages {
 public:
  explicit RunningAverages(ParamStore& store);

  void after(int64_t leaf, Stretch leaves);

 private:
  struct Copies {
    Graph graph;
    std::unique_ptr<Program> program;
  };

  std::vector<Buffer> aside_;
  Copies put_, bring_;
};

}  // namespace vitrum
