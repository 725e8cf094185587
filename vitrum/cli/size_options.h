// --image-size, --patch-size and --num-classes as options of a verb.
#pragma once
#include <vector>

#include "vitrum/cli/verbs.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct SizeOptions {
  std::optional<InputSize> image_size;
  std::optional<int64_t> num_classes, patch_size;
};

Option image_size_option(std::optional<InputSize>& target);
Option patch_size_option(std::optional<int64_t>& target);
std::vector<Option> size_options(SizeOptions& options);

// As resolve_model(), with other sizes where they are asked for.
ModelSpec resolve_sized(const std::string& model, const SizeOptions& options,
                        const std::string& arch = {});

}  // namespace vitrum
