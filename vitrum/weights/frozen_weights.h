// The weights of a model that is run and not trained.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/runtime/params.h"
#include "vitrum/weights/adapt.h"
#include "vitrum/weights/checkpoint.h"

namespace vitrum {

// A parameter stays in the mapped file where that holds it as a program reads it, or where the
// backend makes its own copy of it; anything else is converted once, when it is first wanted, into
// memory of its own. The pages of the file that a copy came from are given back. The file may be
// replaced by another one meanwhile (as every writer of ours does), but not be overwritten in
// place. Where it is cut short, check_intact() says so behind a run.
class FrozenWeights {
 public:
  // `model` is what `spec` was resolved from, and `g` states the parameters. `stored` is how `spec`
  // was then, where it has another image size now: positions are resampled as the file's framework
  // does. Fails with all differences between model and file.
  FrozenWeights(const std::string& model, const ModelSpec& spec, const Graph& g, Backend& backend)
      : FrozenWeights(model, spec, g, backend, stored_config(spec)) {}
  FrozenWeights(const std::string& model, const ModelSpec& spec, const Graph& g, Backend& backend,
                const ModelConfig& stored);
  // A part of a file that is no model of images, under names that are known: a text tower.
  FrozenWeights(const std::string& file, const Naming& naming, const Graph& g, Backend& backend);
  FrozenWeights(const FrozenWeights&) = delete;
  FrozenWeights& operator=(const FrozenWeights&) = delete;

  ParamStore& store() { return store_; }
  void check_intact() const { file_.check_intact(); }
  // The first parameter whose numbers are not all finite; "" where all are. Reads the whole file.
  std::string not_finite() const { return file_.not_finite(stored_, config_); }

  // In which eight bits the file holds layers (kI8, kE4M3; kF32: in none), and which ones; the
  // others are to stay as they are.
  DType quantized() const;
  bool is_quantized(const std::string& layer) const;

  size_t mapped() const { return mapped_; }        // bytes used in place, so far
  size_t converted() const { return converted_; }  // bytes of memory of our own, so far

 private:
  TensorView find(size_t param, ParamStore::Form form);
  TensorView find_quantized(size_t param);
  TensorView find_e4m3(size_t param);
  std::vector<float> read(size_t param) const;
  TensorView own(const Shape& shape, DType dtype);
  void release(const void* data);

  Backend& backend_;
  ModelConfig config_;  // of the file
  Checkpoint file_;
  std::unique_ptr<const Adapter> adapt_;
  std::vector<ParamSpec> stored_;         // as the file has them
  std::map<const void*, size_t> packed_;  // those the backend will copy, by where they are mapped
  std::map<const void*, DType> to_quantize_;  // of owned_, those that are read once
  std::vector<Buffer> owned_;
  size_t mapped_ = 0, converted_ = 0;
  ParamStore store_;
};

}  // namespace vitrum
