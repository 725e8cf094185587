// A file of weights in any dialect, seen as a model's parameters under our names. Internal to
// weights/.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

class Checkpoint {
 public:
  // Opens the file and finds its dialect. Whether its tensors are a model's is for check().
  explicit Checkpoint(const std::string& path);
  // What is known to be there under these names: a part of a file that holds more.
  Checkpoint(const std::string& path, Naming naming);

  const std::string& path() const { return file_->path(); }
  const Dialect& dialect() const { return *naming_.dialect; }

  // Classes, channels and, where they are square, the patch grid or windows as the tensors have
  // them: what `config` cannot know about a bare file.
  ModelConfig stored_sizes(ModelConfig config) const;

  // Fails with all differences at once unless the file holds exactly these parameters, once each.
  // `params` has shapes of `config`. Without `head`, a head and what leads to it may be there.
  void check(std::span<const ParamSpec> params, const ModelConfig& config, bool head) const;

  // A checked parameter: its dtype, and its bytes in our order. Those of the file itself where they
  // are in that order already, else copied to `scratch`.
  DType dtype(const ParamSpec& param, const ModelConfig& config) const;
  std::span<const std::byte> read(const ParamSpec& param, const ModelConfig& config,
                                  std::vector<std::byte>& scratch) const;
  // Whether the file holds it in eight bits; read() gives f32 all the same.
  bool is_quantized(const ParamSpec& param, const ModelConfig& config) const;
  // Its bytes and scales then: those of the file itself, or where several tensors are one parameter
  // copied to `scratch`.
  struct Quantized {
    std::span<const std::byte> bytes;
    std::vector<float> scales;
    DType dtype = DType::kI8;  // or kE4M3
  };
  Quantized read_quantized(const ParamSpec& param, const ModelConfig& config,
                           std::vector<std::byte>& scratch) const;
  // The first of these whose numbers are not all finite, by our name; "" where all are.
  std::string not_finite(std::span<const ParamSpec> params, const ModelConfig& config) const;
  // Behind every use of what read() gave: fails where the file was cut short meanwhile.
  void check_intact() const { file_->check_intact(); }
  // It will not be read again soon: gives back the memory of the file's pages.
  void release(const ParamSpec& param, const ModelConfig& config) const;

 private:
  void require_family(const ModelConfig& config) const;
  // The dimensions of a one-tensor parameter, in our order, where it has `rank` of them.
  std::vector<int64_t> dims_of(const char* name, int rank, const ModelConfig& config) const;
  std::vector<float> beside(const char* name) const;

  std::unique_ptr<TensorSource> file_;
  Naming naming_;
};

// The parameters of a model, in order.
std::vector<ParamSpec> model_params(const ModelConfig& config);

// A preset as a bare file has it: its own sizes, and what the framework that wrote it computes with
// and publishes for preprocessing.
ModelSpec bare_file_spec(ModelSpec preset, const Checkpoint& file);

// The file that holds the weights: `model` itself, or one of a directory by its usual names.
std::string weights_path(const std::string& model);

}  // namespace vitrum
