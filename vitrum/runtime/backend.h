// The only interface between a graph and a device.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrum/core/buffer.h"
#include "vitrum/core/tensor.h"
#include "vitrum/graph/op.h"

namespace vitrum {

class Communicator;
class Link;

// Copies of parameters that do not change, in the layouts in which kernels read them best. Each is
// made once and shared by all programs of a store.
class PackedParams {
 public:
  // Of f32, of bf16, of eight bits; f32 in rows as they were.
  enum class Layout { kPanels, kTiles, kBytes, kRows };

  void allow(const void* param) { allowed_.insert(param); }
  bool allows(const void* param) const { return allowed_.contains(param); }
  // Of parameters that are there in eight bits already: a scale a row.
  void set_scales(const void* param, std::vector<float> scales) {
    scales_[param] = std::move(scales);
  }
  std::span<const float> scales(const void* param) const {
    const auto found = scales_.find(param);
    return found == scales_.end() ? std::span<const float>() : std::span(found->second);
  }
  // Called with each parameter after it was copied; programs that take the copy do not read it.
  std::function<void(const void*)> on_copy;
  // make(memory) fills the copy where there is none yet. Null: this is no parameter, or it may
  // change.
  template <class Make>
  const std::byte* copy(const void* param, Layout layout, size_t bytes, const Make& make) {
    if (!allows(param)) return nullptr;
    Buffer& copy = copies_[{param, layout}];
    if (!copy.data()) {
      copy = allocate_host(bytes);
      make(copy.data());
      if (on_copy) on_copy(param);
    }
    return copy.data();
  }

 private:
  std::set<const void*> allowed_;
  std::map<const void*, std::vector<float>> scales_;
  std::map<std::pair<const void*, Layout>, Buffer> copies_;
};

// A node's views, in the order op.h lists them; absent ones are null.
struct Operands {
  std::vector<TensorView> in, out;
  PackedParams* packed = nullptr;  // may be null
  // Gets the column sums of the first result added; null: not wanted. See Backend::adds_columns.
  TensorView column_sums = {};
};

// One of several nodes in a row, each of which reads a result of the one before it.
struct ChainNode {
  const Op* op = nullptr;
  Operands io;
  size_t result = 0, operand = 0;  // which result that is of the one before, and which operand here
  bool only = false;               // nobody else reads it
  // Which of the graph's values its operands and results are, those that have no memory included;
  // -1 where absent.
  std::vector<int32_t> in = {}, out = {};
  // Of each operand, where it is lowered: whether it is a result of the program that nobody reads
  // behind the kernel, so that its memory may hold something else before that ends.
  std::vector<bool> free = {};
};

// One prepared launch, bound to its views. Built once (may allocate, create descriptors, choose
// algorithms), launched many times (may not allocate).
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void launch() = 0;
  // Whether the host has a part in it: then a device cannot replay it by itself.
  virtual bool on_host() const { return false; }
  // Which one it is, where a backend chooses between several; for traces.
  virtual std::string_view name() const { return {}; }
};

template <class F>
std::unique_ptr<Kernel> make_kernel(F f) {
  struct Closure final : Kernel {
    explicit Closure(F f) : f(std::move(f)) {}
    void launch() override { f(); }
    F f;
  };
  return std::make_unique<Closure>(std::move(f));
}

// One after the other, as one.
inline std::shared_ptr<Kernel> in_a_row(std::vector<std::shared_ptr<Kernel>> kernels) {
  struct Row final : Kernel {
    explicit Row(std::vector<std::shared_ptr<Kernel>> kernels) : kernels(std::move(kernels)) {}
    void launch() override {
      for (const auto& kernel : kernels) kernel->launch();
    }
    bool on_host() const override {
      return std::any_of(kernels.begin(), kernels.end(),
                         [](const auto& k) { return k->on_host(); });
    }
    std::vector<std::shared_ptr<Kernel>> kernels;
  };
  return std::make_shared<Row>(std::move(kernels));
}

// The kernels of a program, or of several in a row, replayed as one unit. On a CPU a loop; on a GPU
// one captured graph, or several with those between them in which the host has a part.
using Kernels = std::vector<std::shared_ptr<Kernel>>;
class Sequence {
 public:
  explicit Sequence(Kernels kernels) : kernels_(std::move(kernels)) {}
  virtual ~Sequence() = default;
  virtual void run() {
    for (auto& kernel : kernels_) kernel->launch();
  }
  // One kernel at a time, for tracing: the device is idle before and after. Returns its seconds.
  virtual double run_one(size_t i) {
    const auto start = std::chrono::steady_clock::now();
    kernels_[i]->launch();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  size_t size() const { return kernels_.size(); }
  const Kernels& kernels() const { return kernels_; }

 protected:
  Kernels kernels_;
};

// Work beside the rest of a device's: its kernels have a queue and working memory of their own.
// What it reads and writes is not written, or read, by others between start() and end().
class SideStream {
 public:
  virtual ~SideStream() = default;
  // Kernels that are lowered between these two are of the side stream.
  virtual void enter() = 0;
  virtual void leave() = 0;
  // Launched with the rest: those of its kernels that follow run when what came before is done,
  // and what comes behind end() when they are.
  virtual std::shared_ptr<Kernel> start() = 0;
  virtual std::shared_ptr<Kernel> end() = 0;
};

// One device and one stream of work on it, and another beside it where it has one. Programs of the
// same backend do not run at the same time, but for one on the side stream.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual void bind_thread() {}               // to be called by a thread before it uses the backend
  virtual Buffer allocate(size_t bytes) = 0;  // zeroed
  virtual void upload(TensorView to, const void* from) = 0;
  virtual void download(void* to, TensorView from) = 0;
  // Reads `from` as it is at this point of the work given to the device, without waiting for it:
  // `to` holds the bytes after wait(). For a few scalars a step.
  virtual void download_later(void* to, TensorView from) { download(to, from); }
  virtual void wait() {}  // until the device has done all it was given
  // Most memory of its own the device has held for us at once; 0 where it uses the process's.
  virtual int64_t peak_bytes() const { return 0; }
  // Memory the host can read and write directly, so that inputs need no upload.
  virtual bool host_visible() const = 0;
  // Whether bf16 programs keep weights of linear layers that never change in a layout of their own:
  // then it does not matter in which precision they come.
  virtual bool packs_weights() const { return false; }
  // What `--precision auto` means here: the fastest precision that trains as well as f32.
  virtual DType usual_precision() const { return DType::kF32; }
  // Whether it multiplies e4m3 faster than what is wider.
  virtual bool multiplies_e4m3() const { return false; }
  // Multiply-adds in a program that keep the device busy: with more images at once than that takes,
  // inference would not be faster.
  virtual int64_t enough_work(DType /*compute*/) const {
    return std::numeric_limits<int64_t>::max();
  }
  virtual std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) = 0;
  // How many of the nodes, from the first on, are one kernel here. Their operands have no memory
  // yet; what only nodes of the kernel read gets none.
  virtual size_t joins(std::span<const ChainNode> /*chain*/) const { return 1; }
  virtual std::unique_ptr<Kernel> lower_joined(std::span<const ChainNode> /*joined*/) {
    return nullptr;
  }
  // Whether that kernel adds up the columns of the first result of its last node in passing: the
  // gradient of the bias of a linear layer before it, for which all of it would be read again.
  virtual bool adds_columns(std::span<const ChainNode> /*joined*/) const { return false; }
  virtual std::unique_ptr<Sequence> prepare(Kernels kernels) {
    return std::make_unique<Sequence>(std::move(kernels));
  }
  // Null: the device does one thing after the other.
  virtual std::shared_ptr<SideStream> side_stream() { return {}; }
  // To the devices of the other processes, who all call it at the same point. Null: by what the
  // host sees (see make_link).
  virtual std::shared_ptr<Link> link(Communicator& /*comm*/) { return {}; }
  // Where kernels are chosen by timing, results depend on the choice. From now on those in `known`,
  // which choices() gave, are taken; others are timed and noted (`more`), or else chosen by rule
  // alone, so that processes and restarts choose alike.
  virtual void share_choices(const std::string& /*known*/, bool /*more*/) {}
  virtual std::string choices() const { return {}; }
};

}  // namespace vitrum
