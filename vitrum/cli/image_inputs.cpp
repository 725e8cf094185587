#include "vitrum/cli/image_inputs.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "vitrum/cli/size_options.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/data/file_dataset.h"
#include "vitrum/data/folder.h"
#include "vitrum/data/shards.h"

namespace vitrum {
namespace {

void add(const std::string& input, std::vector<std::string>& files) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(input, ignored)) return files.push_back(input);
  const std::vector<std::string> found = image_files(input);
  if (found.empty()) fail_input("{}: holds no image ({})", input, kImageExtensions);
  files.insert(files.end(), found.begin(), found.end());
}

// One name a line, or as `find -print0` ends them.
void add_listed(std::vector<std::string>& files) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  std::string text;
  std::vector<char> block(1 << 16);
  for (size_t n; (n = std::fread(block.data(), 1, block.size(), stdin)) > 0;) {
    text.append(block.data(), n);
    if (text.size() > kMostBytes)
      fail_input("standard input: more than {} bytes; expected a list of files", kMostBytes);
  }
  std::istringstream list(std::move(text));
  const char end = list.view().find('\0') == std::string_view::npos ? '\n' : '\0';
  for (std::string name; std::getline(list, name, end);) {
    if (end == '\n' && name.ends_with('\r')) name.pop_back();
    if (!name.empty()) add(name, files);
  }
}

}  // namespace

std::vector<std::string> image_paths(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) input == "-" ? add_listed(files) : add(input, files);
  if (files.empty()) fail_input("no images: standard input is empty");
  return files;
}

std::unique_ptr<Dataset> open_images(const std::vector<std::string>& inputs,
                                     const DecodeOptions& options) {
  constexpr std::string_view kShards = "shards:";
  if (inputs.size() == 1 && inputs[0].starts_with(kShards))
    return open_unlabelled_shards(inputs[0].substr(kShards.size()), options);
  std::vector<LabelledFile> files;
  for (const std::string& path : image_paths(inputs)) files.push_back({path, 0});
  return std::make_unique<FileDataset>(std::move(files), std::vector<std::string>{}, options);
}

Option tta_option(std::string& tta) {
  return {.name = "--tta",
          .target = &tta,
          .help = "flip: the mean of what the model says of an image and of its mirror image",
          .choices = {"none", "flip"}};
}

Tta parse_tta(const std::string& tta) { return tta == "flip" ? Tta::kFlip : Tta::kNone; }

Option shard_option(std::string& shard) {
  return {"--shard", &shard,
          "take part I of N, counted from 1, of the images in their order; all N together are the "
          "whole",
          "I/N"};
}

std::unique_ptr<Dataset> take_shard(std::unique_ptr<Dataset> images, const std::string& shard) {
  if (shard.empty()) return images;
  constexpr int64_t kMost = 1'000'000'000;
  int64_t part = 0, parts = 0;
  const char *begin = shard.data(), *end = begin + shard.size();
  const auto first = std::from_chars(begin, end, part);
  const bool slash = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, parts) : first;
  if (!slash || second.ec != std::errc() || second.ptr != end || part < 1 || part > parts ||
      parts > kMost)
    fail_usage("--shard {}: expected I/N with I from 1 to N, as 2/8", shard);
  return take_part(std::move(images), part, parts);
}

std::vector<Option> model_options(ModelOptions& o) {
  return {
      {.name = "--model",
       .target = &o.model,
       .help = "model directory, or a weight file with --arch",
       .value = "MODEL",
       .required = true},
      {"--arch", &o.arch, "what a bare weight file is for: a name of `vitrum models`", "PRESET"},
      image_size_option(o.image_size),
      patch_size_option(o.patch_size),
      {.name = "--max-patches",
       .target = &o.max_patches,
       .help = "images keep their shapes, with no more patches than that, of a model for any shape "
               "(SigLIP 2's NaFlex, which has 256)",
       .min = 1,
       .max = 1 << 14},
      {"--exif-orientation", &o.exif_orientation,
       "turn photos upright as their EXIF data says; off by default, as in timm, torchvision "
       "and transformers"}};
}

void note_preprocessing(const CommonOptions& common, const ModelSpec& model) {
  const Preprocessing& p = model.preprocess;
  if (!common.verbose || !p.assumed || p.max_patches > 0) return;
  info(common,
       fmt::format("no file states the preprocessing; as its framework has it: {} x {}, {}, "
                   "{}, mean {}, std {}",
                   p.height, p.width, p.interpolation,
                   p.crop_mode == "squash" ? "squashed" : "centre crop", join(p.mean, " "),
                   join(p.std, " ")));
}

PredictorOptions predictor_options(const ModelOptions& o, const CommonOptions& common) {
  PredictorOptions options;
  options.arch = o.arch;
  options.image_size = o.image_size, options.patch_size = o.patch_size;
  options.max_patches = o.max_patches;
  options.device = common.device;
  options.threads = static_cast<int>(common.threads);
  if (common.precision != "auto") options.precision = compute_precision(common);
  options.decode.exif_orientation = o.exif_orientation;
  return options;
}

}  // namespace vitrum
