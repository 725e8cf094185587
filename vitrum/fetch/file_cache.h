// Files of known size and checksum, fetched from afar when they are wanted and kept on disk as long
// as there is room. Several processes may share the folder.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "vitrum/fetch/download.h"

namespace vitrum {

struct CachedFile {
  std::string url, sha256;
  int64_t size = 0;
};

struct FileCacheOptions {
  std::string folder;
  int64_t most_bytes = 0;
  HttpOptions http = {};
  int tries = 5;     // of one file, each going on where the one before broke off
  double pause = 1;  // seconds before the second try, twice that before the third, ...
  int at_once = 2;   // files fetched at a time
  int ahead = 8;     // files fetched before they are asked for
};

// Fetches on threads of its own. What cannot be had after all tries fails for whoever asks for it,
// then and ever after; what only could not be fetched ahead is tried anew when it is asked for.
class FileCache {
 public:
  FileCache(std::vector<CachedFile> files, FileCacheOptions options);
  ~FileCache();
  FileCache(const FileCache&) = delete;
  FileCache& operator=(const FileCache&) = delete;

  // Waits until the file is there. It may be removed again when others need its room: ask anew for
  // each use.
  std::string path_of(int32_t file);
  // In which order they will be asked for.
  void will_read(const std::vector<int32_t>& files);

 private:
  enum class Status : uint8_t { kAbsent, kWanted, kFetching, kThere, kFailed };
  struct State {
    Status status = Status::kAbsent;
    int64_t place = 0;       // in the order of reading
    double touched = -1e9;   // when its time was last set, in seconds
    bool asked_for = false;  // not only fetched ahead
    std::optional<Error> problem;
  };

  std::string path(int32_t file) const;
  void want_around(int32_t file);
  bool touch(int32_t file);
  void work();
  void fetch(int32_t file, HttpClient& client);
  void fetch_once(int32_t file, HttpClient& client);
  void fetch_whole(int32_t file, HttpClient& client);
  void make_room(int64_t bytes);
  bool is_kept(const std::string& name);
  bool stopping();

  const std::vector<CachedFile> files_;
  const FileCacheOptions options_;
  std::mutex room_;   // held while room is made
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<State> states_;
  std::vector<int32_t> order_;
  std::deque<int32_t> wanted_;
  int64_t kept_from_ = 0, kept_to_ = 0;  // of the order: what is in use, or soon will be
  int64_t reserved_ = 0;                 // bytes of files on their way
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace vitrum
