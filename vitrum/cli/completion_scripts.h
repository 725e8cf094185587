// The files of vitrum/cli/completion/, put into the binary by the build.
#pragma once
#include <string_view>

namespace vitrum {

extern const std::string_view kBashCompletion, kZshCompletion, kFishCompletion;

}  // namespace vitrum
