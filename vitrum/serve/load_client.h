// Requests at a steady rate, and how long their answers took. The clock of a request starts when it
// was due, not when it could be sent: a server that stalls is charged for everyone who had to wait
// meanwhile (a client that waits with it would leave them out, which is called coordinated
// omission).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "vitrum/serve/latency_histogram.h"

namespace vitrum::serve {

struct LoadOptions {
  std::string url;                   // http://HOST[:PORT][/PATH]
  double rate = 0;                   // requests a second; 0: as soon as there is an answer
  int64_t connections = 64;          // as many requests at once
  double seconds = 10;               // that are measured
  double warm_up = 1;                // seconds before, under the same load
  double patience = 10;              // seconds after, for answers that are still missing
  std::vector<std::string> bodies;   // sent in turn; none: GET
  std::vector<std::string> headers;  // "Name: value"
};

struct LoadResult {
  double seconds = 0;                // that were measured
  uint64_t answered = 0;             // of the requests that were due in them
  uint64_t unanswered = 0;           // the same: the connection was lost, or patience was
  std::map<int, uint64_t> statuses;  // of the answered
  LatencyHistogram latency;          // of those with 2xx
};

// Fails where the address is wrong, nobody listens there, or a header is none.
LoadResult run_load(const LoadOptions& options);

// What run_load makes of them, for its tests.
struct LoadUrl {
  std::string host, port, path;
};
LoadUrl parse_load_url(const std::string& url);

}  // namespace vitrum::serve
