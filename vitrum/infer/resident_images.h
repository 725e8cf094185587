// A data set in the device's memory, as the model sees it: a batch is put together, shifted,
// mirrored and erased there (op TakeImages), and 64 bytes an image cross the bus instead of its
// pixels.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/runtime/program.h"

namespace vitrum {

// Why the images of such a loader cannot be kept on a device; "" where they can.
std::string why_not_resident(const Dataset& data, const LoaderConfig& config);

class ResidentImages {
 public:
  // Preprocesses all images and uploads them. `config`: of a loader of rows. `pixels`: where
  // another program reads its images, (B, C, H, W) u8. Uses no more of `store` than its backend.
  ResidentImages(const Dataset& data, const LoaderConfig& config, ParamStore& store,
                 TensorView pixels);

  void upload(const Batch& batch) { program_->upload(rows_, batch.rows.data()); }
  int64_t bytes() const { return images_.shape().numel(); }  // that the images take
  Program& program() { return *program_; }  // writes the pixels of the batch last uploaded

 private:
  void fill(const Dataset& data, LoaderConfig config, Backend& backend);

  Graph graph_;
  Value images_, rows_;
  std::unique_ptr<Program> program_;
};

}  // namespace vitrum
