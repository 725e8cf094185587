#include "vitrum/cli/bench_serve.h"

#include <fmt/format.h>

#include <charconv>

#include "vitrum/cli/image_inputs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/serve/load_client.h"

namespace vitrum {
namespace {

// Requests a second; 0 for "max".
double parse_rate(const std::string& text) {
  if (text == "max") return 0;
  double rate = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (problem != std::errc() || end != text.data() + text.size() || !(rate > 0 && rate <= 1e6))
    fail_usage("--rate: expected max, or requests a second up to 1,000,000, not '{}'", text);
  return rate;
}

serve::LoadOptions settle(const ServeLoad& load) {
  constexpr size_t kMostBytes = size_t{1} << 30;
  if (load.url.empty()) fail_usage("--mode serve needs --url, such as http://127.0.0.1:8080");
  if (!(load.duration > 0 && load.duration <= 86400))
    fail_usage("--duration: expected seconds, up to 86400");
  serve::LoadOptions o{.url = load.url,
                       .rate = parse_rate(load.rate),
                       .connections = load.connections,
                       .seconds = load.duration,
                       .bodies = {},
                       .headers = load.headers};
  if (load.files.empty()) return o;
  size_t bytes = 0;
  for (const std::string& path : image_paths(load.files)) {
    o.bodies.push_back(read_file(path, kMostBytes));
    if ((bytes += o.bodies.back().size()) > kMostBytes)
      fail_input("the files have more than {} bytes together; give fewer", kMostBytes);
  }
  return o;
}

std::string to_json(const serve::LoadOptions& o, const serve::LoadResult& r) {
  JsonWriter json;
  json.begin_object().field("url", o.url).field("mode", "serve").key("rate");
  o.rate > 0 ? json.value(o.rate) : json.value("max");
  json.field("connections", o.connections)
      .field("seconds", r.seconds)
      .field("answered", r.answered)
      .field("unanswered", r.unanswered)
      .field("requests_per_second", static_cast<double>(r.answered) / r.seconds)
      .key("statuses")
      .begin_object();
  for (const auto& [status, count] : r.statuses) json.field(std::to_string(status), count);
  json.end_object()
      .key("latency_ms")
      .begin_object()
      .field("mean", 1e3 * r.latency.mean())
      .field("p50", 1e3 * r.latency.quantile(0.5))
      .field("p90", 1e3 * r.latency.quantile(0.9))
      .field("p99", 1e3 * r.latency.quantile(0.99))
      .field("p99.9", 1e3 * r.latency.quantile(0.999))
      .field("max", 1e3 * r.latency.max())
      .end_object();
  return json.end_object().str() + "\n";
}

std::string to_text(const serve::LoadOptions& o, const serve::LoadResult& r) {
  std::string out = fmt::format(
      "{}, {}, {} for {} s\n\n", o.url, counted(o.connections, "connection"),
      o.rate > 0 ? fmt::format("{} requests/s", o.rate) : "as fast as it answers", r.seconds);
  out += fmt::format("answered     {:<12}{:.1f} a second\n",
                     with_commas(static_cast<int64_t>(r.answered)),
                     static_cast<double>(r.answered) / r.seconds);
  for (const auto& [status, count] : r.statuses)
    out += fmt::format("  {:<11}{}\n", status, with_commas(static_cast<int64_t>(count)));
  out += fmt::format("unanswered   {}\n\n", with_commas(static_cast<int64_t>(r.unanswered)));
  out += fmt::format("{:<10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "latency", "mean", "p50",
                     "p90", "p99", "p99.9", "max");
  const auto ms = [](double seconds) { return fmt::format("{:>11.3f}", 1e3 * seconds); };
  out += fmt::format("{:<10}{}", "ms", ms(r.latency.mean()));
  for (const double q : {0.5, 0.9, 0.99, 0.999}) out += ms(r.latency.quantile(q));
  return out + ms(r.latency.max()) + "\n";
}

}  // namespace

std::vector<Option> serve_load_options(ServeLoad& load) {
  return {{.name = "FILE",
           .target = &load.files,
           .help = "--mode serve: photos to send in turn, folders of them, or - for a list on "
                   "standard input; none: GET"},
          {.name = "--url",
           .target = &load.url,
           .help = "--mode serve: http://HOST:PORT/PATH; the path is /v1/classify by default"},
          {.name = "--rate",
           .target = &load.rate,
           .help = "--mode serve: requests a second, sent when they are due; max: each connection "
                   "as fast as it is answered",
           .value = "X|max"},
          {.name = "--connections",
           .target = &load.connections,
           .help = "--mode serve: requests at once",
           .min = 1,
           .max = 10000},
          {.name = "--duration",
           .target = &load.duration,
           .help = "--mode serve: seconds to measure, after one that is not"},
          {.name = "--header",
           .target = &load.headers,
           .help = "--mode serve: \"NAME: VALUE\" to send, such as an API key",
           .value = "TEXT"}};
}

int bench_serve(const ServeLoad& load, const CommonOptions& common) {
  const serve::LoadOptions options = settle(load);
  const serve::LoadResult result = serve::run_load(options);
  common.json ? print_out(to_json(options, result)) : print_text(to_text(options, result));
  if (result.answered == 0) fail("{}: not one request was answered", load.url);
  return 0;
}

}  // namespace vitrum
