#include "vitrum/serve/json_body.h"

#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"

namespace vitrum::serve {

nlohmann::json parse_json_body(std::string_view text) {
  constexpr int kDeepest = 32;  // what a stack bears, and far more than any request has
  bool too_deep = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;
  };
  nlohmann::json body = nlohmann::json::parse(text, look, /*allow_exceptions=*/false);
  if (too_deep) fail_input("the JSON is nested too deeply");
  if (body.is_discarded()) fail_input("the body is not valid JSON");
  if (!body.is_object()) fail_input("the body is not a JSON object");
  return body;
}

std::string text_of(const nlohmann::json& object, const char* key, const std::string& usual) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return usual;
  if (!found->is_string()) fail_input("{}: expected a string", key);
  return found->get<std::string>();
}

}  // namespace vitrum::serve
