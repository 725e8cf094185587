// Requests and answers as the routes see them. The session, which speaks to the socket, makes the
// one and sends the other.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vitrum::serve {

struct Request {
  std::string method;                                       // "GET"
  std::string path;                                         // decoded, without the query
  std::map<std::string, std::string, std::less<>> query;    // decoded
  std::map<std::string, std::string, std::less<>> headers;  // names in lower case
  std::string body;

  std::string_view header(std::string_view name) const {  // "" where there is none
    const auto found = headers.find(name);
    return found == headers.end() ? std::string_view{} : found->second;
  }
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};  // never with text of a request
};

// Splits a target into path and query and decodes both; nothing where it is not well formed. A
// path has no "//", "." or ".." and no control bytes.
struct Target {
  std::string path;
  std::map<std::string, std::string, std::less<>> query;
};
std::optional<Target> parse_target(std::string_view target);

std::string_view reason_of(int status);

// `"` and `\` as media types quote them; without parameters, in lower case: "image/png".
std::string media_type(std::string_view content_type);
// A parameter of a header such as `multipart/form-data; boundary="x"`; nothing where it is absent.
std::optional<std::string> header_parameter(std::string_view header, std::string_view name);

}  // namespace vitrum::serve
