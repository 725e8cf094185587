#include "vitrum/cli/output_guard.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "vitrum/core/error.h"
#include "vitrum/data/data_place.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/sharded.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

// Where a path leads, also through a link to what does not exist yet.
fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::error_code ignored;
  if (!path.has_filename()) path = path.parent_path();  // "DIR/"
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, ignored)); ++i)
    path = path.parent_path() / fs::read_symlink(path, ignored);  // which may be absolute
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
}

// Where the name itself stands: a link is replaced, not what it leads to.
fs::path place_of(fs::path path) {
  std::error_code ignored;
  if (!path.has_filename()) path = path.parent_path();
  path = fs::absolute(path, ignored);
  if (path.filename() == "." || path.filename() == "..") return target_of(path);
  return fs::weakly_canonical(path.parent_path(), ignored) / path.filename();
}

// What tells a file from every other, whatever it is called; none where nothing is there.
using Identity = std::optional<std::pair<dev_t, ino_t>>;
Identity identity_of(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

bool lies_in(const fs::path& place, const Identity& directory) {
  for (fs::path at = place; directory && at != at.parent_path(); at = at.parent_path())
    if (identity_of(at.parent_path()) == directory) return true;
  return false;
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The first bytes of a regular file that holds any.
std::string head_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::string head(64, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

bool is_safetensors(const std::string& head) {
  constexpr uint64_t kMostHeader = 100'000'000;
  uint64_t length = 0;
  if (head.size() <= sizeof length) return false;
  std::memcpy(&length, head.data(), sizeof length);
  return length <= kMostHeader && head[sizeof length] == '{';
}

// ModelProto begins with its version and its producer.
bool is_onnx(const std::string& head) {
  return head.size() > 2 && head[0] == '\x08' && (head[2] == '\x12' || head[2] == '\x3a');
}

bool is_of(Content content, const std::string& head) {
  switch (content) {
    case Content::kNpy: return head.starts_with("\x93NUMPY");
    case Content::kSafetensors: return is_safetensors(head);
    case Content::kTable:
      return head.starts_with("image,f0") || head.starts_with("image,label,f0") ||
             head.starts_with("text,f0") || head.starts_with("layer,head,distance");
    case Content::kOnnx: return is_onnx(head);
    case Content::kPng: return head.starts_with("\x89PNG\r\n\x1a\n");
    case Content::kSvg: return head.starts_with("<svg") || head.starts_with("<?xml");
    case Content::kHtml: return head.starts_with("<!doctype html>");
    case Content::kZip: return head.starts_with("PK\3\4");
    case Content::kMan: return head.starts_with(".TH ");
  }
  return false;
}

const char* name_of(Content content) {
  constexpr std::array kNames = {"a .npy array",  "a .safetensors file", "a table of this kind",
                                 "an ONNX model", "a PNG image",         "an SVG image",
                                 "an HTML page",  "a weight file",       "a manual page"};
  return kNames[static_cast<size_t>(content)];
}

}  // namespace

void guard_download(const std::string& to, bool force,
                    const std::function<bool(const std::string&)>& knows) {
  const std::vector<std::string> names = entries_of(to);
  if (!names.empty() && std::none_of(names.begin(), names.end(), knows))
    OutputGuard(force).require_force(to, "holds files, and none of this download");
}

Option force_option(bool& force) {
  return {"--force", &force,
          "replace what is there, even if it is not of the kind written; never what is read"};
}

std::vector<std::string> entries_of(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; at != end; at.increment(ignored))
    if (const std::string name = at->path().filename().string(); !name.starts_with('.'))
      names.push_back(name);
  return names;
}

void OutputGuard::reads(const std::string& path) {
  if (path.empty()) return;
  inputs_.push_back({path, target_of(path), is_folder(path)});
  if (head_of(path).starts_with('{'))
    for (const std::string& shard : shards_beside(path))
      inputs_.push_back({shard, target_of(shard), false});
}

// Archives of fixed files are read file by file; what else lies beside them is not theirs. Of a
// folder of classes every file counts, now or the next time.
void OutputGuard::reads_data(const std::string& spec) {
  const size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon), path = place_of_data(spec);
  if (path.empty()) return;
  if (kind == "csv") return reads(path);
  if (kind == "folder" || kind == "shards") {
    const size_t before = inputs_.size();
    for (const char* split : {"train", "test", "val", "valid", "validation"})
      if (is_folder(path + "/" + split)) reads(path + "/" + split);
    return inputs_.size() == before ? reads(path) : void();
  }
  for (const char* below : {"", "/raw", "/MNIST/raw", "/FashionMNIST/raw", "/cifar-10-batches-bin",
                            "/cifar-100-binary"})
    for (const std::string& name : entries_of(path + below))
      if (name.find("ubyte") != name.npos || name.ends_with(".bin") || name.ends_with(".txt"))
        reads(path + below + "/" + name);
}

void OutputGuard::reads_images(const Dataset& images) {
  for (int64_t i = 0; i < images.size(); ++i)
    inputs_.push_back({images.name(i), images.name(i), false});
}

void OutputGuard::reads_list(const std::vector<std::string>& inputs) {
  if (std::ranges::find(inputs, "-") != inputs.end()) reads("/dev/stdin");
  for (const std::string& input : inputs)
    if (input.starts_with("shards:")) reads_data(input);
}

void OutputGuard::reads_run(const std::string& run) {
  for (const char* name : {"config.toml", "metrics.csv", "metrics.jsonl", "predictions.csv",
                           "env.json", "best", "last", "state"})
    reads(run + "/" + name);
  for (const std::string& name : entries_of(run)) {
    const std::string ending = fs::path(name).extension().string();
    const bool page = ending == ".html" || ending == ".svg" || ending == ".png";
    if (!page || name == "curves.svg" || name == "confusion.svg") reads(run + "/" + name);
  }
}

// A file of a directory that is read, under a name outside of it.
const OutputGuard::Input* OutputGuard::linked_input(const std::string& path) const {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return nullptr;
  const Identity output = identity_of(path);
  std::error_code ignored;
  const auto options = fs::directory_options::skip_permission_denied;
  for (const Input& input : inputs_)
    for (fs::recursive_directory_iterator at(input.real, options, ignored), end; at != end;
         at.increment(ignored))
      if ((status.st_nlink > 1 || at->is_symlink(ignored)) && identity_of(at->path()) == output)
        return &input;
  return nullptr;
}

void OutputGuard::refuse_read(const std::string& path) const {
  const auto refuse = [&](const char* how, const Input& input) {
    fail_usage("cannot write '{}': it {} '{}', which is read; choose another place", path, how,
               input.name);
  };
  const Identity output = identity_of(path);
  const fs::path place = place_of(path), target = target_of(path);
  for (const Input& input : inputs_) {
    if (output ? identity_of(input.real) == output : input.real == target) refuse("is", input);
    if (!input.directory) continue;
    const Identity directory = identity_of(input.real);
    if (lies_in(place, directory) || lies_in(target, directory)) refuse("lies in", input);
  }
  if (const Input* input = linked_input(path)) refuse("is a link to a file of", *input);
}

void OutputGuard::refuse_around_read(const std::string& path) const {
  refuse_read(path);
  const Identity folder = identity_of(path);
  for (const Input& input : inputs_)
    if (lies_in(input.real, folder))
      fail_usage("cannot write '{}': '{}', which is read, lies in it; choose another place", path,
                 input.name);
}

void OutputGuard::file(const std::string& path, Content content) const {
  refuse_read(path);
  const std::string head = head_of(path);
  if (!head.empty() && !is_of(content, head))
    require_force(path, fmt::format("exists and is not {}", name_of(content)));
}

void OutputGuard::model_directory(const std::string& path) const {
  refuse_read(path);
  std::error_code ignored;
  if (fs::exists(path, ignored) && !is_folder(path))
    fail_usage("'{}' is not a folder; choose another place", path);
  bool own = true;
  constexpr std::array kWeights = {"model.safetensors", "open_clip_model.safetensors",
                                   "decoder.safetensors"};
  for (const char* name : {"config.json", "preprocessor_config.json", "open_clip_config.json"})
    refuse_read(path + "/" + name);
  for (const char* name : kWeights) refuse_read(path + "/" + name);
  // What a conversion that was killed may have left.
  for (const std::string& name : entries_of(path))
    own &= name == "preprocessor_config.json" ||
           (std::ranges::find(kWeights, name) != kWeights.end() &&
            is_safetensors(head_of(path + "/" + name)));
  if (!own && !is_model_dir(path)) require_force(path, "holds files, and no model");
}

void OutputGuard::require_force(const std::string& path, const std::string& why) const {
  if (!force_)
    fail_usage("'{}' {}; choose another place, or give --force to write there", path, why);
}

}  // namespace vitrum
