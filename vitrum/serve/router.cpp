#include "vitrum/serve/router.h"

#include <algorithm>

#include "vitrum/core/json_text.h"

namespace vitrum::serve {
namespace {

// Segment by segment; a segment in braces takes anything that is not empty.
bool matches(std::string_view pattern, std::string_view path, PathParameters& parameters) {
  while (!pattern.empty() && !path.empty()) {
    pattern.remove_prefix(1), path.remove_prefix(1);  // the slashes
    const std::string_view want = pattern.substr(0, pattern.find('/')),
                           have = path.substr(0, path.find('/'));
    if (want.starts_with('{')) {
      if (have.empty()) return false;
      parameters[std::string(want.substr(1, want.size() - 2))] = have;
    } else if (want != have) {
      return false;
    }
    pattern.remove_prefix(want.size()), path.remove_prefix(have.size());
  }
  return pattern.empty() && path.empty();
}

}  // namespace

Router::Match Router::find(std::string_view method, std::string_view path) const {
  Match match;
  for (const Route& route : routes_) {
    PathParameters parameters;
    if (!matches(route.pattern, path, parameters)) continue;
    // HEAD is GET without the body, which the session leaves out.
    if (route.method == method || (method == "HEAD" && route.method == "GET"))
      return {&route, std::move(parameters), {}};
    match.allowed += (match.allowed.empty() ? "" : ", ") + route.method;
  }
  return match;
}

Response error_response(int status, std::string_view message, ErrorForm form) {
  JsonWriter json;
  if (form == ErrorForm::kOpenAi)
    json.begin_object()
        .key("error")
        .begin_object()
        .field("message", message)
        .field("type", status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error")
        .key("param")
        .null()
        .key("code")
        .null()
        .end_object()
        .end_object();
  else
    json.begin_object().field("error", message).end_object();
  return {.status = status, .body = json.str()};
}

}  // namespace vitrum::serve
