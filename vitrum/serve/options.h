// Everything that can be set about a server. Every limit is an option, and each has a default that
// a hostile client cannot make much of.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace vitrum::serve {

struct ModelSource {
  std::string name, path;
};

struct Limits {
  int64_t header_bytes = 8 << 10;
  int64_t body_bytes = 32 << 20;
  int64_t images = 64;          // a request
  int64_t pixels = 50'000'000;  // an image
  int64_t connections = 1024;
  int64_t per_address = 256;
  int64_t in_flight = 256 << 20;  // bytes of bodies, all connections together
  double header_seconds = 10, body_seconds = 30, idle_seconds = 75, write_seconds = 30;
  double wait_seconds = 2;      // estimated; above it a request is turned away with 429
  double request_seconds = 30;  // from the last byte of the request to its answer
};

struct ServeOptions {
  std::string listen = "127.0.0.1:8080";  // or unix:PATH
  std::string admin;                      // unix:PATH; empty: no admin socket
  std::vector<ModelSource> models;
  std::vector<std::string> hosts;  // names under which it may be called beside its own address
  std::string key_file, tls_cert, tls_key;
  std::string device = "auto", precision = "auto";
  int threads = 0, io_threads = 1;
  int workers = 0;   // threads that parse, decode and run models; 0: as many as `threads`
  int replicas = 1;  // of each model, over which the threads are divided
  int64_t max_batch = 0;
  double max_delay = 0;  // seconds that a batch waits for more images
  double drain_delay = 0;
  Limits limits;
};

}  // namespace vitrum::serve
