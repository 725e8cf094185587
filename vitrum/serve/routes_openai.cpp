// POST /v1/embeddings as OpenAI has it, with images where that has text.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "vitrum/core/base64.h"
#include "vitrum/core/json_text.h"
#include "vitrum/serve/image_run.h"
#include "vitrum/serve/json_body.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {
namespace {

// "data:image/png;base64,.." or base64 alone. A URL is refused: fetching it would let a client use
// this server to reach what it cannot reach itself.
std::string image_of(std::string_view text) {
  if (text.starts_with("http:") || text.starts_with("https:"))
    fail_input("input: URLs are not fetched; send the image as a data: URI");
  if (text.starts_with("data:")) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos || !text.substr(0, comma).ends_with(";base64"))
      fail_input("input: a data: URI of an image is data:image/...;base64,...");
    text.remove_prefix(comma + 1);
  }
  auto bytes = from_base64(text);
  if (!bytes || bytes->empty()) fail_input("input: expected an image in base64");
  return std::move(*bytes);
}

std::vector<std::string> inputs_of(const nlohmann::json& body) {
  const auto found = body.find("input");
  if (found == body.end()) fail_input("input: missing");
  std::vector<std::string> images;
  if (found->is_string()) {
    images.push_back(image_of(found->get_ref<const std::string&>()));
  } else if (found->is_array()) {
    for (const nlohmann::json& each : *found) {
      if (!each.is_string()) fail_input("input: expected a list of strings");
      images.push_back(image_of(each.get_ref<const std::string&>()));
    }
  } else {
    fail_input("input: expected a string or a list of strings");
  }
  return images;
}

// Of length one, as OpenAI's are.
std::vector<float> unit(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  std::vector<float> out;
  for (const float v : x) out.push_back(static_cast<float>(static_cast<double>(v) * scale));
  return out;
}

void write_vector(JsonWriter& json, const std::vector<float>& x, bool as_base64) {
  json.key("embedding");
  if (as_base64) {
    json.value(base64({reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)}));
    return;
  }
  json.begin_array();
  for (const float v : x) json.value(v);
  json.end_array();
}

Response embeddings(const ServedModel& model, std::vector<ImageAnswer>& answers, bool as_base64) {
  // The form has no place for an error of one image, so the first one is the answer.
  for (size_t i = 0; i < answers.size(); ++i)
    if (!answers[i].error.empty())
      return error_response(answers[i].status,
                            "input " + std::to_string(i) + ": " + answers[i].error,
                            ErrorForm::kOpenAi);
  JsonWriter json;
  json.begin_object().field("object", "list").key("data").begin_array();
  for (size_t i = 0; i < answers.size(); ++i) {
    json.begin_object().field("object", "embedding").field("index", i);
    write_vector(json, unit(answers[i].slot->features), as_base64);
    json.end_object();
  }
  json.end_array()
      .field("model", model.name())
      .key("usage")
      .begin_object()
      .field("prompt_tokens", 0)
      .field("total_tokens", 0)
      .end_object()
      .end_object();
  return {.body = json.str()};
}

void embed(Context& context, const ExchangePtr& exchange) {
  guarded(exchange, ErrorForm::kOpenAi, [&] {
    const nlohmann::json body = parse_json_body(exchange->request.body);
    const std::string name = text_of(body, "model", ""),
                      format = text_of(body, "encoding_format", "float");
    if (format != "float" && format != "base64") fail_input("encoding_format is float or base64");
    const ModelPtr model = model_for(context, exchange, name, ErrorForm::kOpenAi);
    if (!model) return;
    if (const auto wanted = body.find("dimensions"); wanted != body.end() && !wanted->is_null()) {
      if (!wanted->is_number_integer() ||
          wanted->get<int64_t>() != model->engine().predictor().dimension())
        fail_input("dimensions: this model has {}", model->engine().predictor().dimension());
    }
    ImageRun run{.model = model, .errors = ErrorForm::kOpenAi, .images = {}};
    run.owned = inputs_of(body);
    run.images.assign(run.owned.begin(), run.owned.end());
    run.finish = [model, as_base64 = format == "base64"](std::vector<ImageAnswer>& answers) {
      return embeddings(*model, answers, as_base64);
    };
    run_images(context, exchange, std::move(run));
  });
}

}  // namespace

void add_openai_routes(Router& router, Context& context) {
  router.add({.method = "POST",
              .pattern = "/v1/embeddings",
              .handle = [&context](ExchangePtr e, const PathParameters&) { embed(context, e); },
              .errors = ErrorForm::kOpenAi});
}

}  // namespace vitrum::serve
