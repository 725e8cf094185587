#include "vitrum/fetch/file_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Held by the one process that fetches a file; let go with the process. A few locks serve all
// files.
class FetchLock {
 public:
  FetchLock(const std::string& folder, const std::string& sha256)
      : fd_(::open(fmt::format("{}/.lock-{}", folder, sha256.substr(0, 2)).c_str(),
                   O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {}
  ~FetchLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FetchLock(const FetchLock&) = delete;
  FetchLock& operator=(const FetchLock&) = delete;
  // Where the file system knows no locks, each fetches for itself.
  bool try_lock() const {
    return fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

 private:
  int fd_;
};

}  // namespace

FileCache::FileCache(std::vector<CachedFile> files, FileCacheOptions options)
    : files_(std::move(files)), options_(std::move(options)), states_(files_.size()) {
  ensure_directory(options_.folder);
  std::vector<int32_t> in_order(files_.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  will_read(in_order);
}

FileCache::~FileCache() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool FileCache::stopping() {
  const std::scoped_lock lock(mutex_);
  return stop_;
}

std::string FileCache::path(int32_t file) const {
  return fmt::format("{}/{}.tar", options_.folder, files_[static_cast<size_t>(file)].sha256);
}

void FileCache::will_read(const std::vector<int32_t>& files) {
  const std::scoped_lock lock(mutex_);
  order_ = files;
  for (size_t i = 0; i < order_.size(); ++i)
    states_[static_cast<size_t>(order_[i])].place = static_cast<int64_t>(i);
}

// This one first, then those that follow it; and room is made of others than those around it.
void FileCache::want_around(int32_t file) {
  const int64_t place = states_[static_cast<size_t>(file)].place;
  const auto want = [&](int32_t f, bool soon) {
    State& state = states_[static_cast<size_t>(f)];
    if (state.status != Status::kAbsent) return;
    state.status = Status::kWanted;
    soon ? wanted_.push_front(f) : wanted_.push_back(f);
  };
  want(file, true);
  const int64_t end =
      std::min<int64_t>(place + options_.ahead + 1, static_cast<int64_t>(order_.size()));
  for (int64_t i = place + 1; i < end; ++i) want(order_[static_cast<size_t>(i)], false);
  kept_from_ = std::max<int64_t>(place - options_.ahead, 0), kept_to_ = end;
  while (workers_.size() < static_cast<size_t>(options_.at_once))
    workers_.emplace_back([this] { work(); });
}

// Whether it is there; the time of the last use says what may go first.
bool FileCache::touch(int32_t file) {
  constexpr double kSeldom = 1;
  State& state = states_[static_cast<size_t>(file)];
  if (now() - state.touched < kSeldom) return access(path(file).c_str(), R_OK) == 0;
  state.touched = now();
  return utimensat(AT_FDCWD, path(file).c_str(), nullptr, 0) == 0 ||
         access(path(file).c_str(), R_OK) == 0;
}

std::string FileCache::path_of(int32_t file) {
  std::unique_lock lock(mutex_);
  State& state = states_[static_cast<size_t>(file)];
  if (state.status == Status::kFailed && !state.asked_for) state.status = Status::kAbsent;
  state.asked_for = true;
  while (true) {
    if (state.status == Status::kThere && !touch(file)) state.status = Status::kAbsent;
    if (state.status == Status::kFailed) throw *state.problem;
    const bool there = state.status == Status::kThere;
    want_around(file);
    changed_.notify_all();
    if (there) return path(file);
    changed_.wait(
        lock, [&] { return state.status == Status::kThere || state.status == Status::kFailed; });
  }
}

void FileCache::work() {
  HttpOptions http = options_.http;
  http.stop = [this] { return stopping(); };
  std::unique_ptr<HttpClient> client;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !wanted_.empty(); });
    if (stop_) return;
    const int32_t file = wanted_.front();
    wanted_.pop_front();
    State& state = states_[static_cast<size_t>(file)];
    state.status = Status::kFetching;
    lock.unlock();
    std::optional<Error> problem;
    try {
      if (!client) client = std::make_unique<HttpClient>(http);
      fetch(file, *client);
    } catch (const Error& error) {  // no fault of an image, whatever it is
      const bool full = error.kind() == ErrorKind::kExhausted;
      problem.emplace(full ? ErrorKind::kExhausted : ErrorKind::kFailed, error.what());
    } catch (const std::exception& error) {
      problem.emplace(ErrorKind::kExhausted, error.what());
    }
    lock.lock();
    state.status = problem ? Status::kFailed : Status::kThere;
    state.problem = std::move(problem);
    changed_.notify_all();
  }
}

// A server may be busy, lie or be gone for a while: only after all tries its answer is final.
void FileCache::fetch(int32_t file, HttpClient& client) {
  for (int n = 1;; ++n) {
    try {
      return fetch_once(file, client);
    } catch (const NotThere&) {
      throw;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kExhausted || n >= options_.tries || client.stop())
        throw Error(error.kind(), fmt::format("{} (tried {} times)", error.what(), n));
    }
    pause_unless_stopped(client, options_.pause * (1 << (n - 1)));
  }
}

void FileCache::fetch_once(int32_t file, HttpClient& client) {
  const CachedFile& wanted = files_[static_cast<size_t>(file)];
  const FetchLock lock(options_.folder, wanted.sha256);
  while (!lock.try_lock() && !client.stop()) pause_unless_stopped(client, 0.05);
  std::error_code error;
  if (fs::file_size(path(file), error) == static_cast<uintmax_t>(wanted.size) && !error)
    return fetch_whole(file, client);
  make_room(wanted.size);
  const auto give_back = [this](const CachedFile* fetched) {
    const std::scoped_lock guard(mutex_);
    reserved_ -= fetched->size;
  };
  const std::unique_ptr<const CachedFile, decltype(give_back)> reserved(&wanted, give_back);
  fetch_whole(file, client);
}

// What is there already is only checked.
void FileCache::fetch_whole(int32_t file, HttpClient& client) {
  const CachedFile& wanted = files_[static_cast<size_t>(file)];
  const RemoteFile remote{
      .path = path(file), .urls = {wanted.url}, .size = wanted.size, .digest = wanted.sha256};
  if (!download_all(client, {remote}, {.tries = 1, .quiet = true}))
    fail("{}: stopped before it was here", wanted.url);
}

bool FileCache::is_kept(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  for (int64_t i = kept_from_; i < kept_to_; ++i)
    if (name.starts_with(files_[static_cast<size_t>(order_[static_cast<size_t>(i)])].sha256))
      return true;
  return false;
}

// Removes what was used longest ago, but nothing of what this process is about to read.
void FileCache::make_room(int64_t bytes) {
  struct Entry {
    fs::path path;
    fs::file_time_type time;
    int64_t size;
  };
  const std::scoped_lock one_at_a_time(room_);
  std::vector<Entry> entries;
  std::error_code ignored;
  int64_t total = 0;
  {
    const std::scoped_lock lock(mutex_);
    total = reserved_;
    reserved_ += bytes;
  }
  for (fs::directory_iterator at(options_.folder, ignored), end; at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (name.find(".tar") == name.npos) continue;
    std::error_code gone;
    const auto size = static_cast<int64_t>(at->file_size(gone));
    if (gone) continue;
    total += size;
    if (!is_kept(name)) entries.push_back({at->path(), at->last_write_time(gone), size});
  }
  std::ranges::sort(entries, {}, &Entry::time);
  for (const Entry& entry : entries) {
    if (total + bytes <= options_.most_bytes) return;
    if (fs::remove(entry.path, ignored)) total -= entry.size;
  }
}

}  // namespace vitrum
