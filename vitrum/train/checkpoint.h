// What a run needs to go on as if it had never stopped: one safetensors file, replaced in one
// atomic step, with the counters in its metadata. A kill at any moment leaves the previous file or
// the new one.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "vitrum/runtime/params.h"
#include "vitrum/train/work_share.h"

namespace vitrum {

struct TrainPosition {
  int64_t step = 0;    // optimiser steps done
  int64_t epochs = 0;  // epochs finished: trained, evaluated where due, and written to the metrics
  // Of the epoch under way:
  double loss_images = 0;  // the sum of all images' losses
  double seconds = 0;      // training time, interruptions excluded
  // Of the run:
  double best_accuracy = -1;  // before the first evaluation; of a pretraining a loss, negative
  int64_t best_epoch = 0;

  bool operator==(const TrainPosition&) const = default;
};

std::string checkpoint_path(const std::string& run);
bool has_checkpoint(const std::string& run);

// What a checkpoint keeps of a store (parameters, moments, averages and named state, all bits of
// them) in host memory: it can be written while training goes on. Gradients are zero between
// optimiser steps, and the bf16 copy is made anew from the master weights.
class Snapshot {
 public:
  explicit Snapshot(ParamStore& store, const WorkShare& share = {});

  // Again, into the same memory: pages are dear when they are new.
  void take(ParamStore& store, const WorkShare& share = {});
  ParamStore& store() { return store_; }
  bool finite();  // every weight

 private:
  std::unique_ptr<Backend> host_;
  ParamStore store_;
};

// Where several processes train, the first takes a snapshot while each of the others does this: it
// gives what only it has.
void contribute(ParamStore& store, const WorkShare& share);

void save_checkpoint(const std::string& run, Snapshot& snapshot, const TrainPosition& position);
// Fails, naming the file, where it does not belong to this model and optimiser.
TrainPosition load_checkpoint(const std::string& run, ParamStore& store);

}  // namespace vitrum
