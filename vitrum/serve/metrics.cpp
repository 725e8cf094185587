#include "vitrum/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace vitrum::serve {
namespace {

constexpr double kSeconds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                               0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
constexpr double kImages[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

std::string head(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class T>
std::string one(const char* name, const char* type, const char* help, T value) {
  return head(name, type, help) + fmt::format("{} {}\n", name, value);
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds) : bounds_(bounds.begin(), bounds.end()) {}

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string out;
  const std::string comma = labels.empty() ? "" : ",",
                    plain = labels.empty() ? "" : "{" + labels + "}";
  uint64_t sum = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, bound, sum);
  }
  out += fmt::format("{}_sum{} {}\n", name, plain, sum_.load(std::memory_order_relaxed));
  return out + fmt::format("{}_count{} {}\n", name, plain, sum);
}

Metrics::Metrics()
    : queue(kSeconds), decode(kSeconds), model(kSeconds), total(kSeconds), batch(kImages) {}

void Metrics::count(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

std::string Metrics::text(int64_t models) const {
  std::string out =
      head("vitrum_requests_total", "counter", "Requests answered, by route and status.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_)
      out += fmt::format("vitrum_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                         key.second, count);
  }
  const auto histogram = [&](const char* name, const char* help, const Histogram& h) {
    out += head(name, "histogram", help) + h.text(name);
  };
  histogram("vitrum_queue_seconds", "Time an image waited for the model.", queue);
  histogram("vitrum_decode_seconds", "Time to decode and preprocess an image.", decode);
  histogram("vitrum_model_seconds", "Time of one run of the model.", model);
  histogram("vitrum_request_seconds", "Time from the end of a request to its answer.", total);
  histogram("vitrum_batch_images", "Images in one run of the model.", batch);
  out += one("vitrum_images_total", "counter", "Images taken.", images.load());
  out += one("vitrum_images_waiting", "gauge", "Images between request and answer.",
             images_waiting.load());
  out += one("vitrum_connections", "gauge", "Open connections.", connections.load());
  out += one("vitrum_connections_refused_total", "counter", "Connections over the limit.",
             refused_connections.load());
  out += one("vitrum_body_bytes", "gauge", "Bytes reserved for request bodies.", body_bytes.load());
  out += one("vitrum_models", "gauge", "Models that are ready.", models);
  return out;
}

}  // namespace vitrum::serve
