#include "vitrum/cli/image_inputs.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "vitrum/cli/size_options.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/data/file_dataset.h"
#include "vitrum/data/folder.h"

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
  std::vector<LabelledFile> files;
  for (const std::string& path : image_paths(inputs)) files.push_back({path, 0});
  return std::make_unique<FileDataset>(std::move(files), std::vector<std::string>{}, options);
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
      {"--exif-orientation", &o.exif_orientation,
       "turn photos upright as their EXIF data says; off by default, as in timm, torchvision "
       "and transformers"}};
}

void note_preprocessing(const CommonOptions& common, const ModelSpec& model) {
  const Preprocessing& p = model.preprocess;
  if (!common.verbose || !p.assumed) return;
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
  options.image_size = o.image_size;
  options.device = common.device;
  options.threads = static_cast<int>(common.threads);
  if (common.precision != "auto") options.precision = compute_precision(common);
  options.decode.exif_orientation = o.exif_orientation;
  return options;
}

}  // namespace vitrum
