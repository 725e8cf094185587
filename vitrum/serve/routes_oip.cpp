// /v2: the Open Inference Protocol.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "vitrum/core/json_text.h"
#include "vitrum/serve/image_run.h"
#include "vitrum/serve/oip.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {
namespace {

OipShape shape_of(const ServedModel& model) {
  const ModelConfig& c = model.spec().config;
  return {c.channels(), c.image_h(), c.image_w(), model.predictor().classes(),
          model.predictor().dimension()};
}

std::string metadata(const ServedModel& model) {
  const OipShape s = shape_of(model);
  JsonWriter json;
  const auto tensor = [&](const char* name, const char* type, std::vector<int64_t> shape) {
    json.begin_object().field("name", name).field("datatype", type).key("shape").begin_array();
    for (const int64_t n : shape) json.value(n);
    json.end_array().end_object();
  };
  json.begin_object().field("name", model.name()).key("versions").begin_array();
  json.value(model.version()).end_array().field("platform", "vitrum").key("inputs").begin_array();
  tensor("image", "BYTES", {-1});
  tensor("pixels", "UINT8", {-1, s.channels, s.height, s.width});
  json.end_array().key("outputs").begin_array();
  if (s.classes > 0) tensor("logits", "FP32", {-1, s.classes}), tensor("labels", "BYTES", {-1});
  tensor("features", "FP32", {-1, s.dimension});
  return json.end_array().end_object().str();
}

std::string classification(const Prediction& p, float value) {
  return fmt::format("{}:{}:{}", value, p.index, p.label);
}

OipResult result_of(const ServedModel& model, const OipOutput& out,
                    const std::vector<ImageAnswer>& answers) {
  const auto count = static_cast<int64_t>(answers.size());
  OipResult r{.name = out.name, .type = "FP32", .shape = {count}, .binary = out.binary};
  if (out.name == "labels" || out.classification > 0) {
    r.type = "BYTES";
    const size_t most = out.classification > 0 ? static_cast<size_t>(out.classification) : 1;
    for (const ImageAnswer& a : answers)
      for (const Prediction& p : top_predictions(a.slot->logits, model.spec().labels, most))
        r.texts.push_back(out.name == "labels" && out.classification == 0
                              ? p.label
                              : classification(p, a.slot->logits[static_cast<size_t>(p.index)]));
    if (out.classification > 0) r.shape.push_back(static_cast<int64_t>(most));
    return r;
  }
  const bool logits = out.name == "logits";
  for (const ImageAnswer& a : answers) {
    const std::vector<float>& row = logits ? a.slot->logits : a.slot->features;
    r.numbers.insert(r.numbers.end(), row.begin(), row.end());
  }
  r.shape.push_back(logits ? model.predictor().classes() : model.predictor().dimension());
  return r;
}

Response finish(const ServedModel& model, const std::string& id,
                const std::vector<OipOutput>& outputs, std::vector<ImageAnswer>& answers) {
  // The protocol has no place for an error of one image, so the first one is the answer.
  for (size_t i = 0; i < answers.size(); ++i)
    if (!answers[i].error.empty())
      return error_response(answers[i].status, fmt::format("image {}: {}", i, answers[i].error));
  std::vector<OipResult> results;
  for (const OipOutput& out : outputs) results.push_back(result_of(model, out, answers));
  OipAnswer answer = write_oip(model.name(), model.version(), id, results);
  Response response{.body = std::move(answer.body)};
  if (answer.json_bytes > 0) {
    response.content_type = "application/octet-stream";
    response.headers.emplace_back("Inference-Header-Content-Length",
                                  std::to_string(answer.json_bytes));
  }
  return response;
}

size_t json_bytes(const Request& request) {
  const std::string_view text = request.header("inference-header-content-length");
  if (text.empty()) return request.body.size();
  size_t bytes = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (problem != std::errc() || end != text.data() + text.size())
    fail_input("Inference-Header-Content-Length is no number");
  return bytes;
}

// The model of the path, in the version of the path where it names one.
ModelPtr model_of(Context& context, const ExchangePtr& exchange, const PathParameters& p) {
  const ModelPtr model = model_for(context, exchange, p.at("model"));
  const auto version = p.find("version");
  if (model && version != p.end() && version->second != model->version()) {
    exchange->respond(error_response(404, "there is no such version of the model"));
    return nullptr;
  }
  return model;
}

void infer(Context& context, const ExchangePtr& exchange, const PathParameters& p) {
  guarded(exchange, ErrorForm::kPlain, [&] {
    const ModelPtr model = model_of(context, exchange, p);
    if (!model) return;
    const Request& request = exchange->request;
    OipRequest asked = parse_oip(request.body, json_bytes(request), shape_of(*model),
                                 static_cast<size_t>(context.options.limits.images));
    if (asked.timeout_seconds > 0)
      exchange->deadline =
          std::min(exchange->deadline,
                   exchange->arrived + std::chrono::microseconds(static_cast<int64_t>(
                                           1e6 * std::min(asked.timeout_seconds, 3600.0))));
    ImageRun run{.model = model, .images = {}};
    run.decoded = asked.decoded;
    if (asked.priority > 0) run.priority = asked.priority;
    run.owned = std::move(asked.owned), run.images = std::move(asked.images);
    run.finish = [model, id = asked.id, outputs = asked.outputs](auto& answers) {
      return finish(*model, id, outputs, answers);
    };
    run_images(context, exchange, std::move(run));
  });
}

}  // namespace

void add_oip_routes(Router& router, Context& context) {
  const auto get = [&](const char* pattern, auto f, bool open) {
    router.add(
        {.method = "GET",
         .pattern = pattern,
         .handle = [f, &context](ExchangePtr e, const PathParameters& p) { f(context, e, p); },
         .open = open});
  };
  get(
      "/v2",
      [](Context&, const ExchangePtr& e, const PathParameters&) {
        e->respond({.body = R"({"name":"vitrum","version":")" VITRUM_VERSION
                            R"(","extensions":["binary_tensor_data","classification"]})"});
      },
      false);
  get(
      "/v2/health/live",
      [](Context& c, const ExchangePtr& e, const PathParameters&) {
        const bool live = !c.faulty;
        e->respond(
            {.status = live ? 200 : 503, .body = live ? R"({"live":true})" : R"({"live":false})"});
      },
      true);
  get(
      "/v2/health/ready",
      [](Context& c, const ExchangePtr& e, const PathParameters&) {
        const bool ready = c.ready && !c.draining && !c.faulty;
        e->respond({.status = ready ? 200 : 503,
                    .body = ready ? R"({"ready":true})" : R"({"ready":false})"});
      },
      true);
  const auto describe = [](Context& c, const ExchangePtr& e, const PathParameters& p) {
    if (const ModelPtr model = model_of(c, e, p)) e->respond({.body = metadata(*model)});
  };
  const auto ready = [](Context& c, const ExchangePtr& e, const PathParameters& p) {
    const ModelPtr model = model_of(c, e, p);
    if (!model) return;
    const bool yes = !c.draining;
    e->respond(
        {.status = yes ? 200 : 503,
         .body = fmt::format(R"({{"name":{},"ready":{}}})", json_string(model->name()), yes)});
  };
  for (const std::string base : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    get(base.c_str(), describe, false);
    get((base + "/ready").c_str(), ready, true);
    router.add(
        {.method = "POST",
         .pattern = base + "/infer",
         .handle = [&context](ExchangePtr e, const PathParameters& p) { infer(context, e, p); }});
  }
}

}  // namespace vitrum::serve
