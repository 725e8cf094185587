#include "vitrum/serve/json_body.h"

#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/core/text_limits.h"

namespace vitrum::serve {

nlohmann::json parse_json_body(std::string_view text) {
  // What a stack and the memory bear, and more than a request has: pixels as numbers, of some fifty
  // images. Looked at first: a parser that is asked on the way takes the square of a list's length.
  constexpr TextLimits kLimits{.depth = 32, .token = SIZE_MAX, .values = 8 << 20, .parts = 1 << 18};
  if (const std::string problem = json_problem(text, kLimits); !problem.empty())
    fail_input("the JSON {}", problem);
  nlohmann::json body = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
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
