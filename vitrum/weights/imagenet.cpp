#include "vitrum/weights/imagenet.h"

namespace vitrum {

ClassNames imagenet_classes() {
  ClassNames all;
  for (std::string_view rest = kImageNetTable; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const size_t space = line.find(' ');
    all.ids.emplace_back(line.substr(0, space));
    all.labels.emplace_back(line.substr(space + 1));
    rest.remove_prefix(line.size() + 1);
  }
  return all;
}

}  // namespace vitrum
