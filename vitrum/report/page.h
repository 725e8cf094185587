// The files of page/, as the build put them into the library.
#pragma once
#include <string_view>

namespace vitrum {

extern const std::string_view kPageStyle, kPageScript;

}  // namespace vitrum
