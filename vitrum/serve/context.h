// What sessions share, and what routes share beyond it.
#pragma once
#include <atomic>

#include "vitrum/core/parallel.h"
#include "vitrum/serve/backlog.h"
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
  Backlog backlog;
  std::atomic<bool> ready{false}, draining{false}, faulty{false};
  Workers workers;  // last: its threads use the rest
};

struct Context : Service {
  explicit Context(const ServeOptions& o) : Service(o, worker_threads(o)), repository(o) {}
  ~Context() { finish(); }  // they use what is below
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Does what was begun; more than once does nothing.
  void finish() { workers.finish(), explainers.finish(); }

  Repository repository;
  std::atomic<int> explaining{0};
  std::atomic<double> decode_seconds{0};  // of an image, averaged over the last ones
  Workers explainers{1};                  // few and slow ones do not hold up the others

 private:
  static int worker_threads(const ServeOptions& o) {
    if (o.workers > 0) return o.workers;
    return o.threads > 0 ? o.threads : available_cores();
  }
};

}  // namespace vitrum::serve
