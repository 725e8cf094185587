#include <fmt/format.h>
#include <malloc.h>

#include <filesystem>
#include <mutex>
#include <span>

#include "vitrum/cli/parse.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/serve/server.h"

namespace vitrum {
namespace {

struct Options {
  std::vector<std::string> models;
  std::string config;
  serve::ServeOptions serve;
  int64_t io_threads = 1, workers = 0, replicas = 1;
  double max_delay_ms = 0;
};
Verb make_verb(const std::shared_ptr<Options>& o);

// Without any time nothing could be asked or answered.
void require_time(const serve::Limits& l) {
  for (const auto& [name, seconds] :
       {std::pair("--timeout", l.request_seconds), std::pair("--header-timeout", l.header_seconds),
        std::pair("--body-timeout", l.body_seconds), std::pair("--write-timeout", l.write_seconds),
        std::pair("--idle-timeout", l.idle_seconds)})
    if (!(seconds >= 0.001)) fail_usage("{}: expected seconds, 0.001 or more", name);
}

// "NAME=DIR", or a directory that is called by its own name.
serve::ModelSource parse_source(const std::string& text) {
  const size_t equals = text.find('=');
  serve::ModelSource source =
      equals == std::string::npos
          ? serve::ModelSource{std::filesystem::path(text).lexically_normal().filename().string(),
                               text}
          : serve::ModelSource{text.substr(0, equals), text.substr(equals + 1)};
  if (source.name.empty())  // "DIR/"
    source.name = std::filesystem::path(text).lexically_normal().parent_path().filename().string();
  if (source.name.empty() || source.path.empty())
    fail_usage("--model {}: expected DIR or NAME=DIR", text);
  return source;
}

serve::ServeOptions settle(const Options& o, const CommonOptions& common) {
  serve::ServeOptions s = o.serve;
  require_time(s.limits);
  for (const std::string& text : o.models) {
    s.models.push_back(parse_source(text));
    for (size_t i = 0; i + 1 < s.models.size(); ++i)
      if (s.models[i].name == s.models.back().name)
        fail_usage("--model: two models are called {}; give them names: NAME=DIR",
                   s.models.back().name);
  }
  s.device = common.device, s.precision = common.precision;
  s.threads = static_cast<int>(common.threads);
  s.io_threads = static_cast<int>(o.io_threads), s.workers = static_cast<int>(o.workers);
  s.replicas = static_cast<int>(o.replicas), s.max_delay = 1e-3 * o.max_delay_ms;
  if (!(o.max_delay_ms >= 0 && o.max_delay_ms <= 10'000))
    fail_usage("--max-delay: expected milliseconds, up to 10000");
  if (s.replicas > 1 && s.device.starts_with("cuda"))
    fail_usage("--replicas is for a CPU; run a server for each card");
  return s;
}

// The same command line with what the file of --config and the environment say now.
serve::ServeOptions settle_again(const std::vector<std::string>& arguments) {
  const auto fresh = std::make_shared<Options>();
  const Verb verb = make_verb(fresh);
  CommonOptions common;
  parse_command_line(arguments, std::span(&verb, 1), common);
  return settle(*fresh, common);
}

std::string to_json(const serve::LogEntry& e) {
  JsonWriter json;
  json.begin_object()
      .field("id", e.id)
      .field("route", e.route)
      .field("model", e.model)
      .field("status", e.status)
      .field("images", e.images)
      .field("queue_ms", e.queue_ms)
      .field("decode_ms", e.decode_ms)
      .field("model_ms", e.model_ms)
      .field("total_ms", e.total_ms)
      .end_object();
  return json.str() + "\n";
}

// A log that cannot be written is no reason to stop serving.
void write_log(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  try {
    print_out(line);
  } catch (const std::exception&) {
  }
}

int run(const Options& o, const CommonOptions& common) {
  const serve::ServeOptions options = settle(o, common);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what a large request took goes back when it is answered
  serve::Server* running = nullptr;
  serve::ServerHooks hooks;
  hooks.listening = [&](const std::string& address) {
    const bool file = address.starts_with("unix:");
    const std::string at =
        file ? address
             : fmt::format("{}://{}:{}", options.tls_cert.empty() ? "http" : "https",
                           address.substr(0, address.rfind(':')), running->port());
    if (common.json)
      write_log(JsonWriter().begin_object().field("listening", at).end_object().str() + "\n");
    else
      info(common, fmt::format("listening on {}{}", at,
                               file ? ""
                                    : "; open it in a browser, or: curl --data-binary "
                                      "@photo.jpg " +
                                          at + "/v1/classify"));
  };
  hooks.problem = [](const std::string& text) { print_error(text); };
  hooks.reread = [&] { return settle_again(common.arguments); };
  hooks.request = [&](const serve::LogEntry& e) {
    if (common.json) write_log(to_json(e));
    if (common.verbose)
      info(common, fmt::format("{} {} {} image{} {:.1f} ms", e.status, e.route, e.images,
                               e.images == 1 ? "" : "s", e.total_ms));
  };
  serve::Server server(options, std::move(hooks));
  running = &server;
  server.run();
  return 0;
}

// Sizes and times, each with its default.
std::vector<Option> limit_options(serve::Limits& l) {
  return {
      {.name = "--max-body", .target = &l.body_bytes, .help = "bytes of a request", .min = 1},
      {.name = "--max-header",
       .target = &l.header_bytes,
       .help = "bytes of its header",
       .min = 256},
      {.name = "--max-images", .target = &l.images, .help = "images of a request", .min = 1},
      {.name = "--max-pixels", .target = &l.pixels, .help = "pixels of an image", .min = 1},
      {.name = "--max-connections", .target = &l.connections, .help = "connections", .min = 1},
      {.name = "--max-per-address", .target = &l.per_address, .help = "of one address", .min = 1},
      {.name = "--max-in-flight",
       .target = &l.in_flight,
       .help = "bytes of all requests at once",
       .min = 1,
       .max = int64_t{1} << 40},
      {.name = "--max-wait", .target = &l.wait_seconds, .help = "seconds of waiting; more is 429"},
      {.name = "--timeout",
       .target = &l.request_seconds,
       .help = "seconds for an answer; more is 504"},
      {.name = "--header-timeout", .target = &l.header_seconds, .help = "seconds for a header"},
      {.name = "--body-timeout", .target = &l.body_seconds, .help = "seconds for a body"},
      {.name = "--write-timeout",
       .target = &l.write_seconds,
       .help = "seconds for a client to take its answer"},
      {.name = "--idle-timeout", .target = &l.idle_seconds, .help = "seconds between requests"}};
}

Verb make_verb(const std::shared_ptr<Options>& o) {
  std::vector<Option> options = {
      {.name = "--model",
       .target = &o->models,
       .help = "a model directory; repeat it for several",
       .value = "[NAME=]DIR",
       .required = true},
      {.name = "--config",
       .target = &o->config,
       .help = "a TOML file with any of these options; read again at SIGHUP",
       .value = "FILE"},
      {.name = "--listen",
       .target = &o->serve.listen,
       .help = "ADDRESS:PORT or unix:PATH; 127.0.0.1:8080 where not given"},
      {.name = "--host",
       .target = &o->serve.hosts,
       .help = "a name under which clients call it, beside localhost; * for any"},
      {.name = "--api-key-file",
       .target = &o->serve.key_file,
       .help = "clients show one of its keys, one a line: Authorization: Bearer KEY",
       .value = "FILE"},
      {.name = "--tls-cert",
       .target = &o->serve.tls_cert,
       .help = "certificate chain, PEM",
       .value = "FILE"},
      {.name = "--tls-key",
       .target = &o->serve.tls_key,
       .help = "its private key, PEM",
       .value = "FILE"},
      {.name = "--admin",
       .target = &o->serve.admin,
       .help = "a socket that loads and unloads models",
       .value = "unix:PATH"},
      {.name = "--max-batch",
       .target = &o->serve.max_batch,
       .help = "images in one run of the model; 0: as many as make it faster",
       .max = 4096},
      {.name = "--max-delay",
       .target = &o->max_delay_ms,
       .help = "milliseconds that a batch waits to fill; 0: it runs at once"},
      {.name = "--replicas",
       .target = &o->replicas,
       .help = "copies of each model, with a share of the threads each, for CPUs of many cores",
       .min = 1,
       .max = 256},
      {.name = "--workers",
       .target = &o->workers,
       .help = "threads that decode and run models; 0: as many as --threads",
       .max = 4096},
      {.name = "--drain-delay",
       .target = &o->serve.drain_delay,
       .help = "seconds between SIGTERM and the last connection taken, for load balancers"},
      {.name = "--io-threads",
       .target = &o->io_threads,
       .help = "threads for sockets",
       .min = 1,
       .max = 64}};
  for (Option& option : limit_options(o->serve.limits)) options.push_back(std::move(option));
  return {.name = "serve",
          .summary =
              "put models behind HTTP: photos in, labels out; stops cleanly at Ctrl-C or SIGTERM",
          .examples = {"serve --model DIR",
                       "serve --model cats=runs/cats-1/best --listen 0.0.0.0:8080 "
                       "--host photos.example --api-key-file keys.txt",
                       "serve --config serve.toml --json"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace

Verb serve_verb() { return make_verb(std::make_shared<Options>()); }

}  // namespace vitrum
