// metrics.csv and metrics.jsonl of a run directory: one row an epoch.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum {

// NaN means "not measured": an empty cell in the CSV, null in JSON.
struct EpochMetrics {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  int epoch = 0;
  int64_t step = 0;               // optimiser steps so far
  double train_loss = kNone;      // mean over images
  double train_loss_sum = kNone;  // sum of the batches' losses
  double train_acc = kNone;       // accuracies are fractions
  double test_loss = kNone, test_acc = kNone, test_top5 = kNone;
  double lr = kNone, images_per_second = kNone, seconds = kNone;
};

// After "epoch" and "step", in this order, in both files.
struct MetricsField {
  std::string_view name;
  double EpochMetrics::*member;
};
inline constexpr std::array kMetricsFields = {
    MetricsField{"train_loss", &EpochMetrics::train_loss},
    MetricsField{"train_loss_sum", &EpochMetrics::train_loss_sum},
    MetricsField{"train_acc", &EpochMetrics::train_acc},
    MetricsField{"test_loss", &EpochMetrics::test_loss},
    MetricsField{"test_acc", &EpochMetrics::test_acc},
    MetricsField{"test_top5", &EpochMetrics::test_top5},
    MetricsField{"lr", &EpochMetrics::lr},
    MetricsField{"images_per_second", &EpochMetrics::images_per_second},
    MetricsField{"seconds", &EpochMetrics::seconds}};

// The row as one JSON object, the same text as in metrics.jsonl (no newline).
std::string to_json(const EpochMetrics& row);

class MetricsLog {
 public:
  static constexpr int kAfresh = -1;

  // Keeps the rows up to `last_epoch` (kAfresh: none) and rewrites both files without the rest, so
  // that a resumed run repeats nothing. A torn last line of a killed run is dropped.
  MetricsLog(const std::string& dir, int last_epoch);

  void append(std::span<const EpochMetrics> rows);  // on disk when it returns
  void append(const EpochMetrics& row) { append(std::span(&row, 1)); }
  const std::vector<EpochMetrics>& rows() const { return rows_; }

  // Rows of `dir`/metrics.csv; none where there is no such file. Numbers come back bit for bit.
  static std::vector<EpochMetrics> load(const std::string& dir);

 private:
  std::string dir_;
  std::vector<EpochMetrics> rows_;
};

}  // namespace vitrum
