// Adds the gradients of a step's leaves together, each of which starts from zero.
#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "vitrum/runtime/link.h"
#include "vitrum/runtime/program.h"
#include "vitrum/train/leaf_tree.h"
#include "vitrum/train/work_share.h"

namespace vitrum {

class GradientTree {
 public:
  // `link`: to the other processes; null where there are none.
  GradientTree(ParamStore& store, const WorkShare& share, Link* link)
      : store_(store), share_(share), link_(link) {}

  // After the backward pass of each leaf of this process, in order, and in the place of that of a
  // leaf without images: the gradients are put aside and cleared. The only leaf of a process stays
  // where it is.
  void fold(int64_t leaf, const Program::Trace& trace = {});
  // After the last, with a link: kernels after which what this process updates of the gradients is
  // the sum over all leaves. With one process it is so after its last fold(). `backward` is what
  // writes the gradients.
  void add_sum(Kernels& to, const Program& backward);
  // The same with the kernels of that, where the process has a single leaf: parts of the gradients
  // may leave as soon as they are complete. `kernels` has one for each of its own.
  void add_backward_and_sum(Kernels& to, const Program& backward, const Kernels& kernels);
  void forget() { stack_.clear(); }  // before the next step

 private:
  struct Sum {
    Graph graph;
    std::unique_ptr<Program> program;
  };
  Program& program(size_t waiting, size_t merged, bool last);
  TensorView slot(size_t i);
  TensorView own_part(size_t i, Stretch elements);  // of what waits in this process
  bool single() const { return link_ && share_.leaves().size() == 1; }
  // What is exchanged at a time, by how many kernels of the backward pass come before: the same in
  // all processes.
  std::multimap<size_t, Stretch> parts(const Program& backward);
  RankViews views(Stretch elements);
  void make_total();
  void clear_others(Graph& g) const;
  void add_total(Kernels& to);

  ParamStore& store_;
  const WorkShare& share_;
  Link* const link_;
  TreeStack stack_;
  std::vector<Buffer> slots_;  // what waits
  std::map<std::tuple<size_t, size_t, bool>, Sum> sums_;
  // With several processes: what each has added up, in its part of the arena.
  Buffer received_;
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
