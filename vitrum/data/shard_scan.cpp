#include "vitrum/data/shard_scan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/class_numbers.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/tar.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxLabelFile = 1 << 20;
constexpr size_t kMaxClassName = 200;  // bytes; what is longer is a caption

// Files that may state a label, the best first.
constexpr std::array<std::string_view, 3> kLabelFiles = {"cls", "json", "txt"};

struct MemberName {
  std::string key, extension;  // "a/7", "jpg"; the extension in lower case
};

MemberName split_name(const std::string& name) {
  const size_t slash = name.rfind('/'), base = slash == name.npos ? 0 : slash + 1;
  const size_t dot = std::min(name.find('.', base), name.size());
  std::string extension = name.substr(std::min(dot + 1, name.size()));
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return std::tolower(c); });
  return {name.substr(0, dot), extension};
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

class ShardScanner {
 public:
  void scan(const std::string& folder, const std::string& name) {
    const RandomFile file(folder + "/" + name);
    TarReader tar(file);
    index_.shards.push_back({.name = name, .size = file.size(), .modified = file.modified()});
    while (const std::optional<TarMember> member = tar.next()) take(tar, file.path(), *member);
    finish_sample();
    key_.clear();
  }

  ShardIndex result() {
    std::set<std::string> names;
    for (const std::string& label : labels_)
      if (!label.empty()) names.insert(label);
    const std::map<std::string, int> numbers = number_classes(names);
    index_.classes = names_of(numbers);
    for (size_t i = 0; i < labels_.size(); ++i)
      if (!labels_[i].empty()) index_.samples[i].label = numbers.at(labels_[i]);
    return std::move(index_);
  }

 private:
  void take(const TarReader& tar, const std::string& path, const TarMember& member) {
    const MemberName name = split_name(member.name);
    if (name.key.empty() || name.key.ends_with('/')) return;  // a hidden file
    if (!fits_a_line(member.name))
      fail_input("{}: the name '{}' holds a control character", path, shown(member.name));
    if (name.key != key_) finish_sample();
    key_ = name.key;
    if (is_image_extension(name.extension)) {
      if (!image_.name.empty())
        fail_input("{}: the sample '{}' has two images, '{}' and '{}'; pack one image a sample",
                   path, shown(key_), shown(image_.name), shown(member.name));
      if (member.size > kMaxImageFile)
        fail_input("{}: '{}' has {} bytes, more than the limit of {}", path, shown(member.name),
                   member.size, kMaxImageFile);
      image_ = {.shard = static_cast<int32_t>(index_.shards.size() - 1),
                .at = member.at,
                .size = member.size,
                .name = member.name};
      return;
    }
    const auto rank =
        static_cast<size_t>(std::ranges::find(kLabelFiles, name.extension) - kLabelFiles.begin());
    if (rank >= rank_ || member.size > kMaxLabelFile) return;
    if (std::optional<std::string> label = label_in(tar, path, member, name.extension))
      label_ = std::move(*label), rank_ = rank;
  }

  static std::optional<std::string> label_in(const TarReader& tar, const std::string& path,
                                             const TarMember& member,
                                             const std::string& extension) {
    const std::string text = tar.contents(member, kMaxLabelFile);
    const std::optional<std::string> said =
        extension == "json" ? label_of_json(text) : std::optional(text);
    const std::string label(trimmed(said.value_or("")));
    const bool plain = fits_a_line(label) && is_utf8(label) && label.size() <= kMaxClassName;
    if (extension == "cls" && !plain)
      fail_input("{}: '{}' holds no label; expected a number or the name of a class", path,
                 shown(member.name));
    return plain ? std::optional(label) : std::nullopt;
  }

  void finish_sample() {
    if (!image_.name.empty()) {
      index_.samples.push_back(std::move(image_));
      labels_.push_back(std::move(label_));
    }
    image_ = {}, label_.clear(), rank_ = kLabelFiles.size();
  }

  ShardIndex index_;
  std::vector<std::string> labels_;  // of the samples; "" for none
  // The sample under way.
  std::string key_, label_;
  ShardSample image_;
  size_t rank_ = kLabelFiles.size();  // of the file that its label is from
};

}  // namespace

bool is_image_extension(std::string_view extension) {
  constexpr std::array<std::string_view, 11> kKnown = {"jpg", "jpeg", "png",  "webp", "gif", "bmp",
                                                       "tif", "tiff", "heic", "heif", "avif"};
  const size_t dot = extension.rfind('.');
  std::string last(dot == extension.npos ? extension : extension.substr(dot + 1));
  std::ranges::transform(last, last.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(kKnown, last) != kKnown.end();
}

ShardIndex scan_shards(const std::string& folder, const std::vector<std::string>& names) {
  ShardScanner scanner;
  for (const std::string& name : names) scanner.scan(folder, name);
  return scanner.result();
}

}  // namespace vitrum
