// What batches of a model cost, as measured: how to cut a number of images into batches, how large
// a batch is worth while, and how long images will take.
#pragma once
#include <cstdint>
#include <vector>

namespace vitrum {

class CostTable {
 public:
  // Batch sizes in ascending order, from 1 on, with the seconds each takes.
  struct Entry {
    int64_t batch = 1;
    double seconds = 0;
  };
  explicit CostTable(std::vector<Entry> entries);
  // Where nobody timed them: large batches first, and none with padding. They are powers of two
  // and the largest, and with `halves` what is in the middle between two of them.
  static CostTable untimed(int64_t largest, bool halves = false);

  const std::vector<Entry>& entries() const { return entries_; }
  // The smallest batch that reaches 95 % of the best rate: more would only wait longer.
  int64_t useful_batch() const { return useful_; }
  // The first batch in the cheapest way to do `images`. It may be larger than what is left: then
  // the rest of it is padding.
  int64_t first_batch(int64_t images) const;
  double seconds(int64_t images) const;  // of the cheapest way

 private:
  std::vector<Entry> entries_;
  int64_t useful_ = 1;
  std::vector<double> cost_;     // of 0, 1, .. images, up to the largest batch
  std::vector<int64_t> choice_;  // the first batch for as many
};

}  // namespace vitrum
