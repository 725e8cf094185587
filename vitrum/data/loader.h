// Batches of a dataset in a reproducible order, prepared ahead of time by worker threads. What a
// batch holds depends on (seed, epoch, batch number) only, never on threads or on where an epoch
// was entered.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/buffer.h"
#include "vitrum/data/augment.h"
#include "vitrum/data/dataset.h"
#include "vitrum/data/mix.h"

namespace vitrum {

// Whose turn a batch is, where several loaders share an epoch: batch n is taken by the one with
// first <= n % every < first + count. Images far away are shuffled with `every` in mind (Lanes).
struct Turns {
  int64_t every = 1, first = 0, count = 1;
};

struct LoaderConfig {
  int64_t batch_size = 128;
  bool shuffle = false;
  uint64_t seed = 0;
  int threads = 1;   // workers
  int prefetch = 4;  // batches prepared ahead
  Preprocess preprocess;
  Augment augment;  // all off by default: evaluation
  MixConfig mix;
  int64_t strong_epochs = INT64_MAX;  // later ones have crop and flip only, and nothing mixed
  int repeat = 1;     // an image follows itself so many times, each augmented anew; an epoch is as
                      // long as ever and sees the fewer images
  bool rows = false;  // no pixels: Batch::rows says what the op TakeImages makes them of
  Turns turns = {};   // which batches are made at all
  bool tolerant = false;  // an unreadable image is black and has its reason in Batch::errors
};

// Always batch_size samples; those from `count` on (in the last batch of an epoch) are black, label
// 0, index -1.
struct Batch {
  int64_t number = 0;  // in its epoch
  int64_t count = 0;
  Buffer storage;                   // cache-line aligned
  std::vector<ImageRow> rows;       // (batch_size), in place of pixels: else empty
  std::vector<int32_t> labels;      // (batch_size)
  std::vector<int64_t> indices;     // (batch_size): which sample of the dataset
  std::vector<uint8_t> mirrored;    // (batch_size): whether Augment::flip has turned it
  std::vector<MixRow> mix;          // (batch_size), where the loader mixes: else empty
  std::vector<std::string> errors;  // (batch_size), "" where all is well; only of tolerant loaders
  std::vector<InputSize> sizes;     // (batch_size), where images keep their shapes: else empty

  // (batch_size, channels, height, width); where images keep their shapes, each at the beginning of
  // its part.
  std::span<uint8_t> pixels() const {
    return {reinterpret_cast<uint8_t*>(storage.data()), storage.size()};
  }
};

class Loader {
 public:
  Loader(const Dataset& dataset,
         const LoaderConfig& config);  // the dataset must outlive the loader
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  int64_t batches() const;  // per epoch, the last smaller one and others' included
  const LoaderConfig& config() const;

  // Begins an epoch at batch `first_batch`, others' counted; whatever was under way is dropped.
  void start(int64_t epoch, int64_t first_batch = 0);

  // The next batch in order; false at the end of the epoch. Recycles the memory of `batch`: pass
  // the same one again and again and nothing is allocated. Throws what a worker threw (an
  // unreadable image); then start() anew.
  bool next(Batch& batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrum
