#pragma once
#include <string>

namespace vitrum {

// Fails where the tensors of a weight file are not those of the preset `arch`, naming the presets
// whose they are. The number of classes, channels and the image size may be other ones.
void check_arch(const std::string& file, const std::string& arch);

}  // namespace vitrum
