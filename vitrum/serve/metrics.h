// Counters, gauges and histograms in Prometheus' text format.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace vitrum::serve {

// Counts of values up to each of a few bounds. Adding is wait-free.
class Histogram {
 public:
  static constexpr size_t kMostBounds = 20;
  explicit Histogram(std::span<const double> bounds);
  void add(double value);
  // Lines for `name`, with `labels` ("model=\"a\"", or nothing).
  std::string text(const std::string& name, const std::string& labels = {}) const;

 private:
  std::vector<double> bounds_;
  std::array<std::atomic<uint64_t>, kMostBounds + 1> counts_{};
  std::atomic<double> sum_{0};
};

class Metrics {
 public:
  Metrics();
  Histogram queue, decode, model, total, batch;  // seconds; images
  std::atomic<int64_t> connections{0}, body_bytes{0}, images_waiting{0};
  std::atomic<uint64_t> images{0}, refused_connections{0};

  void count(const std::string& route, int status);
  std::string text(int64_t models) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
};

}  // namespace vitrum::serve
