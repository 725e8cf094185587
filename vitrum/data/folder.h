// Images in files: a folder a class (torchvision's ImageFolder), or a CSV list.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/data/decode.h"

namespace vitrum {

// Names of the class folders in `dir`, in byte order.
std::vector<std::string> class_folders(const std::string& dir);

// All images below the class folders of `dir`. `classes` gives the numbering; a folder beside them
// is an error, a class without a folder is not.
std::unique_ptr<Dataset> open_folder(const std::string& dir, std::vector<std::string> classes,
                                     const DecodeOptions& options = {});

// For messages: what counts as an image in a folder.
inline constexpr const char* kImageExtensions =
    ".jpg, .jpeg, .png, .webp, .gif, .bmp, .tif, .tiff, .heic, .heif or .avif";

// The files with these extensions below `dir`, in byte order of their paths; hidden ones are left
// out.
std::vector<std::string> image_files(const std::string& dir);

// Lines of `file,class` or `file,class,split`, a heading line allowed. Classes that are all whole
// numbers are the labels themselves, otherwise they are numbered in byte order of their names.
// `split` is "train", "test" or, for all lines of a list without that column, "".
std::unique_ptr<Dataset> open_csv(const std::string& path, const std::string& split,
                                  const DecodeOptions& options = {});
bool csv_has_splits(const std::string& path);

}  // namespace vitrum
