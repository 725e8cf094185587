#include "vitrum/cli/pack_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/sha.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/pack.h"
#include "vitrum/data/shard_index.h"
#include "vitrum/train/interrupt.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

// What `data pack` writes and nothing else, perhaps in folders of splits.
bool holds_only_shards(const std::string& folder) {
  for (const std::string& name : entries_of(folder)) {
    const bool split = name == "train" || name == "val" || name == "test";
    if (split && holds_only_shards(folder + "/" + name)) continue;
    if (name != kShardIndexName && name != "classes.txt" && !name.ends_with(".tar")) return false;
  }
  return !entries_of(folder).empty();
}

// A hidden folder beside the one wanted, and locked while this process lives: what a killed one
// left is removed by the next that wants the same.
class PackFolder {
 public:
  explicit PackFolder(const std::string& wanted)
      : wanted_(fs::path(wanted).has_filename() ? fs::path(wanted)
                                                : fs::path(wanted).parent_path()),
        path_(beside("new")) {
    open_own();
    if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      ::close(lock_);
      fail_usage("another `data pack` writes to '{}' now", wanted);
    }
    for (const auto& left : fs::directory_iterator(path_)) fs::remove_all(left.path());
  }
  ~PackFolder() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(path_, ignored);
    ::close(lock_);
  }
  PackFolder(const PackFolder&) = delete;
  PackFolder& operator=(const PackFolder&) = delete;

  const std::string& path() const { return path_; }

  void commit() {
    std::error_code ignored;
    const std::string old = beside("old");
    fs::remove_all(old, ignored);
    std::rename(wanted_.c_str(), old.c_str());  // fails where there is none
    replace(path_, wanted_.string());
    committed_ = true;
    fs::remove_all(old, ignored);
  }

 private:
  // What is in it is removed, so it must be a folder of ours and no link: in a shared folder others
  // may have made either.
  void open_own() {
    const fs::path parent = fs::path(path_).parent_path();
    ensure_directory(parent.string());
    struct stat status {};
    ::mkdir(path_.c_str(), 0777);  // or it is there
    lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int code = errno;
    if (lock_ >= 0 && fstat(lock_, &status) == 0 && status.st_uid == geteuid()) return;
    const std::string why = lock_ < 0 ? std::strerror(code) : "it is not yours";
    if (lock_ >= 0) ::close(lock_);
    fail_input("cannot write '{}': {}; remove it, or choose another place", path_, why);
  }
  std::string beside(const std::string& kind) const {
    const fs::path parent = wanted_.parent_path();
    return fmt::format("{}/.{}.{}.vitrum-pack", parent.empty() ? "." : parent.string(),
                       wanted_.filename().string(), kind);
  }
  static void replace(const std::string& from, const std::string& to) {
    if (std::rename(from.c_str(), to.c_str()) != 0)
      fail_input("cannot write '{}': {}", to, std::strerror(errno));
  }

  fs::path wanted_;
  std::string path_;
  int lock_ = -1;
  bool committed_ = false;
};

// The folder comes by renaming, which works neither with the one we are in nor with what is
// mounted.
void require_replaceable(const std::string& folder) {
  std::error_code ignored;
  const fs::path full = fs::weakly_canonical(folder, ignored);
  struct stat own {
  }, above{};
  if (fs::equivalent(full, ".", ignored))
    fail_usage("'{}' is the folder that you are in; choose another place, as {}", folder,
               (fs::path(folder) / "shards").string());
  if (stat(full.c_str(), &own) == 0 && stat(full.parent_path().c_str(), &above) == 0 &&
      (own.st_dev != above.st_dev || full == full.parent_path()))
    fail_usage("'{}' is where a disk is mounted; choose a folder in it, as {}", folder,
               (fs::path(folder) / "shards").string());
}

void guard_output(const PackArguments& a, const std::vector<std::string>& splits) {
  OutputGuard guard(a.force);
  guard.reads_data(a.source);
  if (a.source.starts_with("csv:"))
    for (const std::string& split : splits) guard.reads_images(*open_split(a.source, split));
  guard.refuse_around_read(a.folder);
  require_replaceable(a.folder);
  std::error_code ignored;
  if (entries_of(a.folder).empty() && !fs::exists(a.folder, ignored)) return;
  if (!fs::is_directory(a.folder, ignored))
    fail_usage("'{}' is not a folder; choose another place", a.folder);
  if (entries_of(a.folder).empty()) return;
  if (!holds_only_shards(a.folder))
    fail_usage("'{}' holds other files than packed shards; choose another place", a.folder);
  guard.require_force(a.folder, "holds shards already");
}

PackOptions options_of(const PackArguments& a, const CommonOptions& common) {
  if (a.copy && (a.size || a.quality))
    fail_usage("--copy leaves files as they are: give it, or --size and --quality");
  if (a.quality && !a.size) fail_usage("--quality needs --size N, the shortest edge in pixels");
  return {.size = static_cast<int>(a.size.value_or(0)),
          .quality = static_cast<int>(a.quality.value_or(95)),
          .shards = a.shards.value_or(0),
          .threads = static_cast<int>(common.threads)};
}

}  // namespace

int pack_data(const PackArguments& a, const CommonOptions& common) {
  PackOptions options = options_of(a, common);
  std::vector<std::string> splits = distinct_splits(a.source);
  if (splits.empty()) splits = {""};
  guard_output(a, splits);
  const InterruptGuard interrupt;
  options.stop = [&] { return interrupt.signal() != 0; };
  PackFolder folder(a.folder);
  PackedSplit all;
  std::string digests;
  for (const std::string& split : splits) {
    const std::unique_ptr<Dataset> data = open_split(a.source, split);
    const std::string path = split.empty() ? folder.path() : folder.path() + "/" + split;
    ensure_directory(path);
    Progress progress(split.empty() ? "packing" : "packing " + split, data->size(), common.quiet);
    options.progress = [&](int64_t done) { progress.update(done); };
    const PackedSplit packed = pack_split(*data, path, split.empty() ? "images" : split, options);
    progress.clear();
    if (options.stop()) return 128 + interrupt.signal();
    all.images += packed.images, all.shards += packed.shards, all.bytes += packed.bytes;
    digests += fmt::format("{} {}\n", split, packed.digest);
  }
  folder.commit();
  all.digest = sha256(digests);
  if (common.json) {
    JsonWriter json;
    json.begin_object().field("images", all.images).field("shards", all.shards);
    json.field("bytes", all.bytes).field("digest", all.digest).field("output", a.folder);
    print_out(json.end_object().str() + "\n");
  } else {
    print_text(fmt::format("{} images in {}, {}; use them as shards:{}\n", with_commas(all.images),
                           counted(all.shards, "shard"), human_bytes(all.bytes),
                           printable(a.folder)));
  }
  return 0;
}

}  // namespace vitrum
