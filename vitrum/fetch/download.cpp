#include "vitrum/fetch/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "vitrum/core/checked.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

std::string part_path(const RemoteFile& file) {
  return fmt::format("{}.{}.part", file.path, file.digest.substr(0, 12));
}

int64_t size_of_file(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t n = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), n);
  return code == std::errc() && end == text.data() + text.size() && n >= 0 ? std::optional(n)
                                                                           : std::nullopt;
}

// Appends to a part file, and refuses what cannot become the file expected.
class PartFile final : public HttpSink {
 public:
  PartFile(const RemoteFile& file, Progress& progress, int64_t before)
      : file_(file), part_(part_path(file)), progress_(progress), before_(before) {
    have_ = size_of_file(part_);
    if (have_ > file_.size) forget();
    progress_.update(before_ + have_);
  }

  int64_t have() const { return have_; }
  const std::string& path() const { return part_; }
  const std::string& refusal() const { return refusal_; }

  void forget() {
    output_.reset();
    std::error_code ignored;
    fs::remove(part_, ignored);
    have_ = 0;
  }

  bool begin(const HttpAnswer& head) override {
    if (head.status == 200) have_ = 0;  // from the start, whatever was asked
    if (head.status == 206 &&
        !head.header("content-range").starts_with(fmt::format("bytes {}-", have_)))
      return refuse("the server sends another part than asked for");
    const auto length = whole_number(head.header("content-length"));
    if (length && *length != file_.size - have_)
      return refuse(
          fmt::format("the server has {} bytes, expected {}", *length + have_, file_.size));
    output_.emplace(part_, O_CREAT | (have_ == 0 ? O_TRUNC : O_APPEND));
    return true;
  }

  bool write(std::string_view bytes) override {
    if (static_cast<int64_t>(bytes.size()) > file_.size - have_)
      return refuse(fmt::format("the server sends more than the {} bytes expected", file_.size));
    output_->write(bytes);
    have_ += static_cast<int64_t>(bytes.size());
    progress_.update(before_ + have_);
    return true;
  }

  void sync() {
    if (!output_) return;
    output_->sync();
    output_->close();
    output_.reset();
  }

 private:
  bool refuse(std::string why) {
    refusal_ = std::move(why);
    return false;
  }

  const RemoteFile& file_;
  std::string part_, refusal_;
  Progress& progress_;
  int64_t before_, have_ = 0;  // before_: bytes of the files before this one
  std::optional<OutputFile> output_;
};

class Downloader {
 public:
  Downloader(HttpClient& client, const DownloadOptions& options, Progress& progress)
      : client_(client), options_(options), progress_(progress) {}

  bool fetch(const RemoteFile& file) {
    if (!present(file) && !copied(file)) {
      std::optional<Error> problem;
      for (const std::string& url : file.urls) {
        problem = fetch_from(url, file);
        if (client_.stop()) return false;
        if (!problem) break;
      }
      if (problem && not_there_) throw NotThere(problem->kind(), problem->what());
      if (problem) throw *problem;
    }
    progress_.update(before_ += file.size);
    return true;
  }

 private:
  static bool present(const RemoteFile& file) {
    return file_is(file.path, file.size, file.kind, file.digest);
  }

  bool copied(const RemoteFile& file) {
    if (file.local.empty() || !file_is(file.local, file.size, file.kind, file.digest)) return false;
    const MappedFile source(file.local);
    AtomicFile copy(file.path);
    copy.write(source.bytes());
    source.check_intact();
    copy.commit();
    return true;
  }

  // Nothing where the file is in its place (or all was stopped), else why it is not.
  std::optional<Error> fetch_from(const std::string& url, const RemoteFile& file) {
    PartFile part(file, progress_, before_);
    not_there_ = false;
    const bool resumed = part.have() > 0;
    if (std::optional<Error> problem = receive(url, part, file)) return problem;
    if (client_.stop()) return std::nullopt;
    if (file_is(part.path(), file.size, file.kind, file.digest)) {
      replace_file(part.path(), file.path);
      return std::nullopt;
    }
    part.forget();
    if (resumed) return fetch_from(url, file);  // the old part may be to blame: once more, whole
    return Error(ErrorKind::kInput,
                 fmt::format("{}: the checksum is wrong: damaged on the way, or not the file that "
                             "was announced; nothing was kept",
                             url));
  }

  std::optional<Error> receive(const std::string& url, PartFile& part, const RemoteFile& file) {
    const HttpAnswer answer = with_retries(client_, options_, [&] {
      if (part.have() == file.size && file.size > 0) return HttpAnswer{.status = 206};
      HttpAnswer a = client_.get(url, part.have(), part);
      part.sync();
      if (a.status == 416) {  // our part is not a part of it
        part.forget();
        a = client_.get(url, 0, part);
        part.sync();
      }
      return a;
    });
    if (!part.refusal().empty())
      return Error(ErrorKind::kInput, fmt::format("{}: {}", url, part.refusal()));
    if (answer.stopped || part.have() == file.size) return std::nullopt;
    if (answer.problem.empty() && (answer.status == 200 || answer.status == 206))
      return Error(ErrorKind::kFailed,
                   fmt::format("{}: ends after {} of {} bytes", url, part.have(), file.size));
    not_there_ = answer.problem.empty() && (answer.status == 401 || answer.status == 403 ||
                                            answer.status == 404 || answer.status == 410);
    return status_error(answer, url);
  }

  HttpClient& client_;
  const DownloadOptions& options_;
  Progress& progress_;
  int64_t before_ = 0;      // bytes of the files that are done
  bool not_there_ = false;  // said the last server asked
};

void check_room(const std::vector<RemoteFile>& files) {
  int64_t missing = 0;
  for (const RemoteFile& file : files)
    if (size_of_file(file.path) != file.size)
      missing =
          capped_add(missing, std::max<int64_t>(file.size - size_of_file(part_path(file)), 0));
  const fs::path folder = fs::path(files.front().path).parent_path();
  std::error_code error;
  const fs::space_info space = fs::space(folder.empty() ? "." : folder, error);
  if (!error && missing > 0 && static_cast<uintmax_t>(missing) > space.available)
    fail_exhausted("{}: {:.1f} GB are needed, and the disk has {:.1f} GB left", folder.string(),
                   static_cast<double>(missing) / 1e9, static_cast<double>(space.available) / 1e9);
}

}  // namespace

DownloadLock::DownloadLock(const std::string& folder) {
  ensure_directory(folder);
  fd_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(fd_);
  fail_input(
      "another process writes to '{}' now; when it is done, the same command goes on from there",
      folder);
}

DownloadLock::~DownloadLock() {
  if (fd_ >= 0) close(fd_);
}

bool is_worth_retry(const HttpAnswer& answer) {
  return !answer.problem.empty() || answer.status / 100 == 5 || answer.status == 408;
}

void pause_unless_stopped(HttpClient& client, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!client.stop() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

Error status_error(const HttpAnswer& answer, const std::string& url) {
  if (!answer.problem.empty())
    return Error(ErrorKind::kFailed, answer.problem + "; the same command goes on from here");
  const std::string after = answer.header("retry-after");
  switch (answer.status) {
    case 401:
    case 403:
      return Error(ErrorKind::kInput,
                   fmt::format("{}: access is refused ({})", url, answer.status));
    case 404: return Error(ErrorKind::kInput, fmt::format("{}: there is no such file (404)", url));
    case 429:
      return Error(ErrorKind::kFailed,
                   fmt::format("{} has had too many requests (429); try again {}", host_of(url),
                               whole_number(after) ? "in " + after + " seconds" : "later"));
    default:
      return Error(ErrorKind::kFailed,
                   fmt::format("{}: the server answers {}", url, answer.status));
  }
}

bool download_all(HttpClient& client, const std::vector<RemoteFile>& files,
                  const DownloadOptions& options) {
  if (files.empty()) return true;
  check_room(files);
  int64_t total = 0;
  for (const RemoteFile& file : files) total = capped_add(total, file.size);
  Progress progress("download", total, options.quiet, 0, ProgressUnit::kBytes);
  Downloader downloader(client, options, progress);
  for (const RemoteFile& file : files)
    if (!downloader.fetch(file)) return false;
  progress.finish();
  return true;
}

}  // namespace vitrum
