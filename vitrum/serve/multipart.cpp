#include "vitrum/serve/multipart.h"

#include "vitrum/core/error.h"
#include "vitrum/serve/http.h"

namespace vitrum::serve {
namespace {

constexpr size_t kMostHeaderBytes = 4096, kMostBoundary = 70;  // the second is RFC 2046's

std::string_view line_of(std::string_view& text) {
  const size_t end = text.find("\r\n");
  if (end == std::string_view::npos) fail_input("multipart: a line has no end");
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return line;
}

bool is_header(std::string_view line, std::string_view name) {
  if (line.size() <= name.size() || line[name.size()] != ':') return false;
  for (size_t i = 0; i < name.size(); ++i)
    if ((line[i] | 0x20) != name[i]) return false;
  return true;
}

void read_headers(std::string_view& rest, Part& part) {
  const size_t whole = rest.size();
  for (std::string_view line; !(line = line_of(rest)).empty();) {
    if (whole - rest.size() > kMostHeaderBytes)
      fail_input("multipart: a part's headers are too long");
    if (is_header(line, "content-disposition")) {
      part.name = header_parameter(line, "name").value_or("");
      part.file_name = header_parameter(line, "filename").value_or("");
    } else if (is_header(line, "content-type")) {
      part.type = media_type(line.substr(line.find(':') + 1));
    } else if (is_header(line, "content-transfer-encoding") &&
               line.find("binary") == std::string_view::npos) {
      fail_input("multipart: parts must be binary, without a transfer encoding");
    }
  }
}

}  // namespace

std::vector<Part> parse_multipart(std::string_view body, std::string_view boundary, size_t most) {
  if (boundary.empty() || boundary.size() > kMostBoundary)
    fail_input("multipart: the content type has no boundary of 1 to 70 characters");
  const std::string first = "--" + std::string(boundary), between = "\r\n" + first;
  if (!body.starts_with(first)) fail_input("multipart: the body does not begin with its boundary");
  std::string_view rest = body.substr(first.size());
  std::vector<Part> parts;
  while (!rest.starts_with("--")) {
    if (!line_of(rest).empty()) fail_input("multipart: there is text behind a boundary");
    if (parts.size() == most) fail_input("multipart: more than {} parts", most);
    Part& part = parts.emplace_back();
    read_headers(rest, part);
    const size_t end = rest.find(between);
    if (end == std::string_view::npos) fail_input("multipart: a part has no end");
    part.data = rest.substr(0, end);
    rest.remove_prefix(end + between.size());
  }
  return parts;
}

}  // namespace vitrum::serve
