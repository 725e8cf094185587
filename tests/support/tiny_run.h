// A data set and a model small enough to train in a moment, on any backend.
#pragma once
#include <map>
#include <string>

#include "tests/support/temp_dir.h"
#include "vitrum/train/trainer.h"

namespace vitrum::test {

class TinyRun {
 public:
  static constexpr int64_t kTrain = 75, kTest = 21;  // neither is a multiple of the batch size

  TinyRun();  // writes IDX files of 8 x 8 pixels and a model directory with a ViT of two blocks

  // Three epochs in batches of 16, with dropout and without schedule.
  Recipe recipe() const;
  RunOptions options(const std::string& out, int threads = 1) const;
  // A ResNet in place of the ViT: running statistics move with every batch, before the step ends.
  void use_batch_norm(Recipe& recipe) const;
  // The run goes on from its last checkpoint.
  Trainer resumed(const std::string& out, int threads = 1) const;
  const std::string& path() const { return dir_.path(); }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  vitrum::TempDir dir_;  // not that of data_files.h, whichever comes first
};

// What a run leaves behind, comparable between runs: every file that must not depend on
// interruptions or threads, with its bytes. Times are taken out of the metrics, and event files are
// read as scalars.
using Outcome = std::map<std::string, std::string>;
Outcome outcome(const std::string& run);
// Names every file that is not as expected.
void expect_same(const Outcome& got, const Outcome& expected);

std::string read_text(const std::string& path);

}  // namespace vitrum::test
