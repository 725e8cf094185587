// What routes share.
#pragma once
#include <atomic>

#include "vitrum/serve/metrics.h"
#include "vitrum/serve/options.h"
#include "vitrum/serve/repository.h"
#include "vitrum/serve/workers.h"

namespace vitrum::serve {

struct Context {
  Context(const ServeOptions& o, int workers) : options(o), repository(o), workers(workers) {}

  ServeOptions options;
  Metrics metrics;
  Repository repository;
  std::atomic<bool> ready{false}, draining{false}, faulty{false};
  std::atomic<int> explaining{0};
  std::atomic<double> decode_seconds{0};  // of an image, averaged over the last ones
  Workers workers;                        // last: its threads use the rest
};

}  // namespace vitrum::serve
