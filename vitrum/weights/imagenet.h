// The 1000 classes of ImageNet-1k (ILSVRC 2012), in the order that every framework's models have
// them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vitrum {

struct ClassNames {
  std::vector<std::string> ids;     // WordNet's: "n01440764"
  std::vector<std::string> labels;  // "tench, Tinca tinca"
};
ClassNames imagenet_classes();

// imagenet.txt, as the build put it into the library: "id label" a line.
extern const std::string_view kImageNetTable;

}  // namespace vitrum
