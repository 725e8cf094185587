// One request on its way through the server, from its last byte to its answer.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "vitrum/serve/backlog.h"
#include "vitrum/serve/http.h"

namespace vitrum::serve {

class Exchange {
 public:
  using Clock = std::chrono::steady_clock;

  Request request;
  uint64_t id = 0;
  std::string route = {}, model = {};  // of the table of routes; the model that answered
  Clock::time_point arrived = Clock::now(), deadline = Clock::time_point::max();
  // What its images took, added up by the threads that did it.
  std::atomic<int64_t> images{0}, decode_us{0}, queue_us{0}, model_us{0};
  double total_ms = 0;            // from its last byte to the answer
  std::atomic<bool> gone{false};  // the client closed the connection: nobody waits any more

  Backlog::Place place;  // among those that wait for an answer

  // Whether there is a point in going on with it.
  bool wanted() const { return !gone.load(std::memory_order_relaxed) && Clock::now() < deadline; }

  // From any thread; only the first answer counts.
  void respond(Response response) {
    if (answered_.exchange(true)) return;
    place.answered();
    send(std::move(response));
  }
  std::function<void(Response)> send;  // set by the session

 private:
  std::atomic<bool> answered_{false};
};
using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace vitrum::serve
