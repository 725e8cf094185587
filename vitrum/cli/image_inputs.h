// What classify and embed share: images named on the command line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"
#include "vitrum/data/dataset.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/infer/tta.h"

namespace vitrum {

// Files as they are given; for a folder, the images below it in sorted order; for "-", the files
// and folders that standard input lists, one a line.
std::vector<std::string> image_paths(const std::vector<std::string>& inputs);
// The same; and for "shards:DIR" alone, the images in tar shards.
std::unique_ptr<Dataset> open_images(const std::vector<std::string>& inputs,
                                     const DecodeOptions& options);

// --shard I/N as an option of a verb: one of N processes takes part I of the images.
Option shard_option(std::string& shard);
std::unique_ptr<Dataset> take_shard(std::unique_ptr<Dataset> images, const std::string& shard);

// --model, --arch, --image-size, --patch-size, --max-patches and --exif-orientation as options of a
// verb.
struct ModelOptions {
  std::string model, arch;
  std::optional<InputSize> image_size;
  std::optional<int64_t> patch_size, max_patches;
  bool exif_orientation = false;
};
std::vector<Option> model_options(ModelOptions& options);
// --tta as an option of a verb.
Option tta_option(std::string& tta);
Tta parse_tta(const std::string& tta);
PredictorOptions predictor_options(const ModelOptions& options, const CommonOptions& common);

// With -v: what was assumed where no file states the preprocessing.
void note_preprocessing(const CommonOptions& common, const ModelSpec& model);

}  // namespace vitrum
