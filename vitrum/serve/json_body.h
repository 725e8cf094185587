// JSON that a client sent. Only sources that parse JSON include this.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace vitrum::serve {

// An object nested at most 32 deep; throws (bad input) what is wrong otherwise.
nlohmann::json parse_json_body(std::string_view text);
// A string, `usual` where the key is absent or null; throws where it is anything else.
std::string text_of(const nlohmann::json& object, const char* key, const std::string& usual);

}  // namespace vitrum::serve
