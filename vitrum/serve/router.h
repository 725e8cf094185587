// The table of routes: which request goes where, and what every one of them must pass first.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/serve/exchange.h"

namespace vitrum::serve {

// How a family of routes tells of errors.
enum class ErrorForm { kPlain, kOpenAi };  // {"error": ".."}; {"error": {"message": ..}}

using PathParameters = std::map<std::string, std::string, std::less<>>;  // {model} of a pattern

struct Route {
  std::string method, pattern;  // "POST", "/v2/models/{model}/infer"
  std::function<void(ExchangePtr, const PathParameters&)> handle;
  bool open = false;  // needs no API key: health and the page
  ErrorForm errors = ErrorForm::kPlain;
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }

  struct Match {
    const Route* route = nullptr;
    PathParameters parameters;
    std::string allowed;  // methods of the path, where none has this one
  };
  Match find(std::string_view method, std::string_view path) const;

 private:
  std::vector<Route> routes_;
};

Response error_response(int status, std::string_view message, ErrorForm form = ErrorForm::kPlain);

}  // namespace vitrum::serve
