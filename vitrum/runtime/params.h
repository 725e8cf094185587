#pragma once
#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/buffer.h"
#include "vitrum/graph/graph.h"
#include "vitrum/graph/passes.h"
#include "vitrum/runtime/backend.h"

namespace vitrum {

// Every parameter of a model with what training keeps beside it. Each arena is one allocation in
// which a parameter has the same element offset, so an optimiser sees flat arrays. Frozen
// parameters come last: gradients and moments end before them. Also owns the named state.
class ParamStore {
 public:
  // Lays out the graph's parameters; the master copy (f32, or f64 for gradient checks) is allocated
  // at once.
  ParamStore(const Graph& g, Backend& backend, DType master = DType::kF32);

  // Parameters that are only read and live elsewhere: `source` is asked for a form of one, once,
  // when a program first wants it; what it returns stays valid as long as the store. There are no
  // arenas then.
  // f32; bf16; either of them, to be rounded to bf16; either of them or eight bits, for these;
  // e4m3, whose scales packed() knows.
  enum class Form { kMaster, kCompute, kToPack, kToQuantize, kE4M3 };
  using Source = std::function<TensorView(size_t param, Form form)>;
  // `reader` gives the host a parameter in f32.
  ParamStore(const Graph& g, Backend& backend, Source source, ParamValues reader);

  void initialize(uint64_t seed);
  // No parameter changes from now on: programs compiled later may keep copies of them in layouts of
  // their own. A store with a source is born like that.
  void freeze() { frozen_ = true; }
  PackedParams* packed() { return frozen_ ? &packed_ : nullptr; }

  const std::vector<ParamSpec>& specs() const { return specs_; }
  // Of an arena, padding included.
  int64_t elements(Arena which) const {
    if (is_moment(which)) return moments_last_ - moments_first_;
    return learns_only(which) ? learning_ : elements_;
  }
  int64_t offset(size_t param) const { return offsets_[param]; }
  int64_t parameter_count() const;           // without padding and buffers
  int index(const std::string& name) const;  // -1 when there is none

  // Allocates an arena on first use, zeroed (kCompute: filled from the master; kEma: a copy of it).
  TensorView arena(Arena which);
  bool has(Arena which) const { return used_[static_cast<size_t>(which)]; }
  // Before the first use of moments: only those of elements [first, last) are kept, by a process
  // that updates no others. Offsets stay what they are.
  void keep_moments(int64_t first, int64_t last);
  bool keeps_all(Arena which) const { return !is_moment(which) || elements(which) == learning_; }
  // Uploads to one parameter what this store keeps of it.
  void upload(size_t param, Arena which, const std::byte* from);
  // Elements [first, first + count) of an arena.
  TensorView part(Arena which, int64_t first, int64_t count);
  // Whether this arena, where there is one, holds anything of the parameter.
  bool has_room(size_t param, Arena which) const {
    return specs_[param].trainable || !learns_only(which);
  }
  TensorView view(size_t param, Arena which);  // a buffer has no average: kEma is its kMaster
  // For a backend that packs it: kCompute, or f32 where that is what the source has.
  TensorView view_to_pack(size_t param);
  // For a layer of eight bits: `which`, or where the source has them bf16, or eight bits whose
  // scales packed() knows.
  TensorView view_to_quantize(size_t param, Arena which);
  // For a layer of e4m3: `which`, or e4m3 where a source makes them.
  TensorView view_to_e4m3(size_t param, Arena which);
  ActivationScales& activation_scales() { return activation_scales_; }
  TensorView state(const std::string& name, Shape shape, DType dtype);
  std::map<std::string, TensorView> states() const;

  // Host copies of one parameter, as f32 whatever the master is.
  std::vector<float> read(size_t param, Arena which = Arena::kMaster);
  void write(size_t param, std::span<const float> values, Arena which = Arena::kMaster);
  void refresh_compute();  // master -> bf16 copy, where there is one

  Backend& backend() const { return backend_; }
  DType dtype(Arena which) const { return which == Arena::kCompute ? DType::kBF16 : master_; }

 private:
  TensorView find(size_t param, Form form);
  struct State {
    Buffer buffer;
    TensorView view;
  };

  void lay_out();
  static bool is_moment(Arena which) {
    return which == Arena::kMoment1 || which == Arena::kMoment2;
  }
  static bool learns_only(Arena which) { return which == Arena::kGrad || is_moment(which); }

  Backend& backend_;
  DType master_ = DType::kF32;
  Source source_;
  ParamValues reader_;
  std::array<std::vector<TensorView>, 5> found_;  // what it returned: [form][param]
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;
  int64_t elements_ = 0, learning_ = 0;  // all; those of trainable parameters, which come first
  int64_t moments_first_ = 0, moments_last_ = 0;
  std::array<Buffer, kArenas> buffers_;
  std::array<bool, kArenas> used_{};
  std::map<std::string, State> states_;
  bool frozen_ = false;
  PackedParams packed_;
  ActivationScales activation_scales_;
};

}  // namespace vitrum
