// The page and the description of the interface, put into the binary by the build.
#pragma once
#include <string_view>

namespace vitrum::serve {

extern const std::string_view kPageHtml, kPageStyle, kPageScript, kOpenApi, kDocsHtml;

}  // namespace vitrum::serve
