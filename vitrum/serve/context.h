// What sessions share, and what routes share beyond it.
#pragma once
#include <atomic>

#include "vitrum/serve/metrics.h"
#include "vitrum/serve/options.h"
#include "vitrum/serve/repository.h"
#include "vitrum/serve/workers.h"

namespace vitrum::serve {

// Knows nothing of models: whatever the routes do, connections are treated alike.
struct Service {
  Service(const ServeOptions& o, int workers) : options(o), workers(workers) {}

  ServeOptions options;
  Metrics metrics;
  std::atomic<bool> ready{false}, draining{false}, faulty{false};
  Workers workers;  // last: its threads use the rest
};

struct Context : Service {
  Context(const ServeOptions& o, int workers) : Service(o, workers), repository(o) {}
  ~Context() { workers.finish(); }  // they use what is below
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Repository repository;
  std::atomic<int> explaining{0};
  std::atomic<double> decode_seconds{0};  // of an image, averaged over the last ones
};

}  // namespace vitrum::serve
