// multipart/form-data in place: parts are views into the body.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum::serve {

struct Part {
  std::string name, file_name;  // of Content-Disposition; "" where it has none
  std::string type;             // media type; "" where it has none
  std::string_view data;
};

// Fails (bad input) with what is wrong where the body is not well formed, has more parts than
// `most`, or a part has more than a few headers.
std::vector<Part> parse_multipart(std::string_view body, std::string_view boundary, size_t most);

}  // namespace vitrum::serve
