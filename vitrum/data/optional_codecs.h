// Formats whose libraries are opened when the first such image is read: the binary does not need
// them to start.
#pragma once
#include <string>
#include <vector>

namespace vitrum {

struct CodecStatus {
  std::string name;  // of the format
  bool available = false;
  std::string detail;  // the library and its version, or what to install
};
std::vector<CodecStatus> optional_codecs();

// Internal to data/.
CodecStatus tiff_status();
CodecStatus heif_status();

}  // namespace vitrum
