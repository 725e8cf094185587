// A server: sockets, sessions, signals, and the way to a clean end.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "vitrum/serve/context.h"

namespace vitrum::serve {

// What became of one request, for the log.
struct LogEntry {
  uint64_t id = 0;
  std::string route, model;
  int status = 0;
  int64_t images = 0;
  double queue_ms = 0, decode_ms = 0, model_ms = 0, total_ms = 0;
};

struct ServerHooks {
  std::function<void(const std::string& address)> listening;  // once sockets are open
  std::function<void(const LogEntry&)> request;               // from the I/O threads
  std::function<void(const std::string&)> problem;            // something to tell the operator
  // Asked at SIGHUP for what to serve from now on; may throw.
  std::function<ServeOptions()> reread;
};

// Loads the models, listens, and answers until SIGTERM, SIGINT or stop(); requests that were
// accepted by then are answered first.
class Server {
 public:
  Server(const ServeOptions& options, ServerHooks hooks);
  ~Server();
  void run();
  void stop();       // from any thread
  int port() const;  // after `listening`; 0 for a Unix socket
  Context& context();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrum::serve
