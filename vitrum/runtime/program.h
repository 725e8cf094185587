#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/graph/graph.h"
#include "vitrum/graph/passes.h"
#include "vitrum/runtime/backend.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// An input or output of one program that is memory of another: what that one reads or writes needs
// no copy. The other program must outlive this one.
struct Shared {
  Value value;
  TensorView view;
};

// Memory for the temporaries of several programs that never run at the same time: the first one to
// be compiled should be the largest. What a program left there is gone once another has run.
struct SharedArena {
  Buffer buffer;
};

struct CompileOptions {
  // kF32, kBF16, kI8 or kE4M3 (linear layers of blocks in eight bits, the rest in f32 or bf16;
  // inference only), or kF64 (reference backend only).
  DType compute = DType::kF32;
  KeepsFloat keeps_float = {};     // in eight bits: layers that are not
  bool share_memory = true;        // false: every temporary has memory of its own (for tests)
  Arena weights = Arena::kMaster;  // kEma: f32 parameters are the averaged ones
  std::vector<Value> taps = {};    // stay readable too, in the precision they have anyway
  std::vector<Shared> shared = {};
  SharedArena* arena = nullptr;  // null: an arena of its own; else it outlives the program
  SideStream* side = nullptr;    // its kernels are of this one, which outlives the program
  // To run on, where that is not the store's: one with the same memory, which outlives the program.
  Backend* backend = nullptr;
};

// A planned and lowered graph. Built once; run() replays it without allocating.
class Program {
 public:
  // `g` must be fused and differentiated already; dtypes are assigned, dead nodes dropped and
  // memory planned here. `outputs` stay readable after run(). The store must outlive the program.
  Program(Graph& g, std::span<const Value> outputs, ParamStore& store,
          const CompileOptions& options = {});

  void run() { sequence_->run(); }
  // Kernels [first, last) only, for who must look at a result and write an input in between.
  void run(size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) sequence_->run_one(i);
  }
  // Kernel by kernel, and what each did.
  struct Operand {
    std::string name;  // of a parameter, an input or a state; "" for what another kernel made
    TensorView view;
  };
  struct Step {
    std::string name;     // of the layer
    std::string_view op;  // of op.h
    std::string kernel;   // as the backend calls it; "" where it has one for the op
    size_t number = 0;    // in the program, from 0
    int64_t bytes = 0;    // of its operands, each once
    int64_t macs = 0;     // multiply-adds of matrix products and attention
    std::vector<Operand> in;
    std::vector<TensorView> out;
    size_t joined_into = 0;  // the number of the kernel that does its work
  };
  using Trace = std::function<void(const Step&, double seconds)>;
  void run_traced(const Trace& after);

  TensorView operator[](Value v) const { return views_[static_cast<size_t>(v.id())]; }
  void upload(Value v, const void* from) { backend_.upload((*this)[v], from); }
  // The i-th of the first dimension alone.
  void upload_part(Value v, size_t i, const void* from);
  void download(void* to, Value v) const { backend_.download(to, (*this)[v]); }
  void download_later(void* to, Value v) const {  // see Backend
    backend_.download_later(to, (*this)[v]);
  }
  double read_scalar(Value v) const;

  const Plan& plan() const { return plan_; }
  size_t kernels() const { return sequence_->size(); }
  const Sequence& sequence() const { return *sequence_; }
  // Of a program on a side stream: what stands between its start() and end(). By themselves run()
  // and sequence() do one kernel after the other.
  const Kernels& side_kernels() const { return side_kernels_; }
  // The last kernel that writes any of these bytes; the first that reads some.
  std::optional<size_t> last_to_write(std::span<const std::byte> bytes) const;
  std::optional<size_t> first_to_read(const TensorView& view) const;

 private:
  TensorView bind(const Graph& g, ValueId id, const CompileOptions& options);
  void add_steps(const Graph& g, size_t first, std::span<const ChainNode> joined,
                 const Kernel& kernel);

  ParamStore& store_;
  Backend& backend_;
  Plan plan_;
  Buffer own_arena_;
  std::byte* arena_ = nullptr;
  std::vector<Buffer> owned_;  // inputs and constants
  std::vector<TensorView> views_;
  std::vector<Step> steps_;
  std::vector<std::pair<size_t, TensorView>> summed_;  // by which kernel; see Operands::column_sums
  std::unique_ptr<Sequence> sequence_;
  Kernels side_kernels_;
};

// Kernel by kernel where somebody looks.
inline void run_program(Program& program, const Program::Trace& trace) {
  trace ? program.run_traced(trace) : program.run();
}

}  // namespace vitrum
