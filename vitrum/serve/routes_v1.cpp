#include <algorithm>
#include <charconv>

#include "vitrum/core/json_text.h"
#include "vitrum/data/orientation.h"
#include "vitrum/serve/image_run.h"
#include "vitrum/serve/multipart.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {

int64_t query_number(const Request& request, std::string_view name, int64_t usual, int64_t low,
                     int64_t high) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return usual;
  const std::string& text = found->second;
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < low || value > high)
    fail_input("{} is a whole number from {} to {}", name, low, high);
  return value;
}

ModelPtr model_for(Context& context, const ExchangePtr& exchange, std::string_view name,
                   ErrorForm errors) {
  if (ModelPtr model = context.repository.find(name)) return model;
  const bool known = name.empty() || context.repository.is_configured(name);
  exchange->respond(known ? error_response(503, "the model is not loaded", errors)
                          : error_response(404, "there is no such model", errors));
  return nullptr;
}

namespace {

std::string_view query_text(const Request& request, std::string_view name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? std::string_view{} : found->second;
}

// The images of a request: its body, or the parts of its body.
std::vector<std::string_view> images_of(const Request& request, const Limits& limits) {
  const std::string type = media_type(request.header("content-type"));
  if (type == "application/json")
    fail_input("send the image itself as the body, or several as multipart/form-data");
  if (!type.starts_with("multipart/")) {
    if (request.body.empty()) return {};
    return {request.body};
  }
  const auto boundary = header_parameter(request.header("content-type"), "boundary");
  std::vector<std::string_view> images;
  const auto most = static_cast<size_t>(limits.images) + 8;  // and a few fields of a form
  for (const Part& part : parse_multipart(request.body, boundary.value_or(""), most))
    if (!part.file_name.empty() || part.type.starts_with("image/") || part.name == "image" ||
        part.name == "images")
      images.push_back(part.data);
  return images;
}

void write_predictions(JsonWriter& json, const ServedModel& model, const ImageSlot& slot,
                       size_t top_k) {
  json.key("predictions").begin_array();
  for (const Prediction& p : top_predictions(slot.logits, model.spec().labels, top_k))
    json.begin_object()
        .field("label", p.label)
        .field("index", p.index)
        .field("probability", p.probability)
        .end_object();
  json.end_array();
}

// {"model", "version", "results": [..]}, where `write` adds what is said of an image.
template <class Write>
Response results(const ServedModel& model, std::vector<ImageAnswer>& answers, const Write& write) {
  JsonWriter json;
  json.begin_object()
      .field("model", model.name())
      .field("version", model.version())
      .key("results")
      .begin_array();
  for (const ImageAnswer& answer : answers) {
    json.begin_object();
    if (answer.error.empty())
      write(json, *answer.slot);
    else
      json.field("error", answer.error);
    json.end_object();
  }
  json.end_array().end_object();
  return {.status = status_of(answers), .body = json.str()};
}

void classify(Context& context, const ExchangePtr& exchange) {
  guarded(exchange, ErrorForm::kPlain, [&] {
    const Request& request = exchange->request;
    const ModelPtr model = model_for(context, exchange, query_text(request, "model"));
    if (!model) return;
    const int64_t classes = model->engine().predictor().classes();
    if (classes == 0) fail_input("the model has no head to classify with");
    const auto top_k =
        static_cast<size_t>(query_number(request, "top_k", std::min<int64_t>(5, classes), 1, 1000));
    run_images(context, exchange,
               {.model = model,
                .images = images_of(request, context.options.limits),
                .finish = [model, top_k](std::vector<ImageAnswer>& answers) {
                  return results(*model, answers, [&](JsonWriter& json, const ImageSlot& slot) {
                    write_predictions(json, *model, slot, top_k);
                  });
                }});
  });
}

void embed(Context& context, const ExchangePtr& exchange) {
  guarded(exchange, ErrorForm::kPlain, [&] {
    const Request& request = exchange->request;
    const ModelPtr model = model_for(context, exchange, query_text(request, "model"));
    if (!model) return;
    run_images(context, exchange,
               {.model = model,
                .images = images_of(request, context.options.limits),
                .finish = [model](std::vector<ImageAnswer>& answers) {
                  return results(*model, answers, [&](JsonWriter& json, const ImageSlot& slot) {
                    json.key("embedding").begin_array();
                    for (const float x : slot.features) json.value(x);
                    json.end_array();
                  });
                }});
  });
}

// Leaves its place in the short queue of explanations when it ends.
struct Place {
  explicit Place(std::atomic<int>& count) : count(count) { ++count; }
  ~Place() { --count; }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  std::atomic<int>& count;
};

void answer_with_overlay(Context& context, const ExchangePtr& exchange) {
  guarded(exchange, ErrorForm::kPlain, [&] {
    const Request& request = exchange->request;
    const ModelPtr model = model_for(context, exchange, query_text(request, "model"));
    if (!model) return;
    const std::string method(request.query.contains("method") ? query_text(request, "method")
                                                              : "rollout");
    if (method != "rollout" && method != "gradient") fail_input("method is rollout or gradient");
    const auto images = images_of(request, context.options.limits);
    if (images.size() != 1) fail_input("send one image to explain");
    exchange->images = 1, exchange->model = model->name();
    const std::span encoded(reinterpret_cast<const uint8_t*>(images[0].data()), images[0].size());
    DecodeOptions options;
    options.max_pixels = context.options.limits.pixels;
    Image image;
    try {
      image = decode_image(encoded, "image", options);
    } catch (const Error& e) {
      return exchange->respond(
          error_response(e.kind() == ErrorKind::kExhausted ? 503 : 422, e.what()));
    }
    exchange->respond({.content_type = "image/png",
                       .body = model->explain(image, read_orientation(encoded), method)});
  });
}

void explain(Context& context, const ExchangePtr& exchange) {
  constexpr int kMostExplaining = 4;
  auto place = std::make_shared<Place>(context.explaining);
  if (context.explaining > kMostExplaining) {
    Response busy = error_response(429, "too many explanations are waiting; try again later");
    busy.headers.emplace_back("Retry-After", "1");
    return exchange->respond(std::move(busy));
  }
  exchange->place.give_up();  // in a line of their own
  context.explainers.post([&context, exchange, place] {
    if (exchange->wanted())
      answer_with_overlay(context, exchange);
    else
      exchange->respond(error_response(504, "the deadline passed before it could be explained"));
  });
}

void list_models(Context& context, const ExchangePtr& exchange) {
  JsonWriter json;
  json.begin_object().field("object", "list").key("data").begin_array();
  for (const ModelPtr& model : context.repository.all()) json.raw(model->card());
  exchange->respond({.body = json.end_array().end_object().str()});
}

}  // namespace

void add_v1_routes(Router& router, Context& context) {
  const auto with = [&context](auto f) {
    return [f, &context](ExchangePtr e, const PathParameters&) { f(context, e); };
  };
  router.add({.method = "POST", .pattern = "/v1/classify", .handle = with(classify)});
  router.add({.method = "POST", .pattern = "/v1/embed", .handle = with(embed)});
  router.add({.method = "POST", .pattern = "/v1/explain", .handle = with(explain)});
  router.add({.method = "GET",
              .pattern = "/v1/models",
              .handle = with(list_models),
              .errors = ErrorForm::kOpenAi});
  router.add({.method = "GET",
              .pattern = "/v1/models/{model}",
              .handle =
                  [&context](ExchangePtr e, const PathParameters& p) {
                    if (const ModelPtr model =
                            model_for(context, e, p.at("model"), ErrorForm::kOpenAi))
                      e->respond({.body = model->card()});
                  },
              .errors = ErrorForm::kOpenAi});
}

}  // namespace vitrum::serve
