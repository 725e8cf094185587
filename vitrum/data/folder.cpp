#include "vitrum/data/folder.h"

#include <algorithm>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/file_dataset.h"
#include "vitrum/data/shard_scan.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_image(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension.starts_with('.') && is_image_extension(extension.substr(1));
}

}  // namespace

// Subfolders count too. Links to files are followed; links to folders below a class are not, as
// they may form a circle.
std::vector<std::string> image_files(const std::string& dir) {
  constexpr int kDeepest = 64;  // a path keeps each of its parts, so depth costs its square
  std::vector<std::string> paths;
  std::string last = dir;  // what a failing ++it goes into: the error does not say
  try {
    for (auto it = fs::recursive_directory_iterator(dir); it != fs::recursive_directory_iterator();
         ++it) {
      last = it->path().string();
      if (it.depth() > kDeepest)
        fail_input("{}: folders nest deeper than {} levels below it", dir, kDeepest);
      if (is_hidden(it->path())) {
        it.disable_recursion_pending();
      } else if (is_image(it->path()) && it->is_regular_file()) {
        paths.push_back(it->path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail_input("{}: cannot be read: {}", last, error.code().message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> class_folders(const std::string& dir) {
  std::vector<std::string> names;
  try {
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (entry.is_directory() && !is_hidden(entry.path()))
        names.push_back(entry.path().filename().string());
    }
  } catch (const fs::filesystem_error& error) {
    fail_input("{}: cannot be read: {}", dir, error.code().message());
  }
  // Labels are written to JSON files, which nothing else can stand in.
  for (const std::string& name : names)
    if (!is_utf8(name))
      fail_input("{}/{}: the name of this class folder is not UTF-8; rename it", dir,
                 printable(name));
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<Dataset> open_folder(const std::string& dir, std::vector<std::string> classes,
                                     const DecodeOptions& options) {
  std::vector<LabelledFile> files;
  for (const std::string& name : class_folders(dir)) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
      fail_input("{}/{}: no such class among the training data{}", dir, name,
                 did_you_mean(name, classes));
    }
    const std::vector<std::string> paths = image_files((fs::path(dir) / name).string());
    if (paths.empty())
      fail_input("{}/{}: the class folder holds no image ({})", dir, name, kImageExtensions);
    const int label = static_cast<int>(found - classes.begin());
    for (const std::string& path : paths) files.push_back({path, label});
  }
  if (files.empty()) fail_input("{}: holds no class folders", dir);
  return std::make_unique<FileDataset>(std::move(files), std::move(classes), options);
}

}  // namespace vitrum
