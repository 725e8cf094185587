// Files of known size and checksum from the network to the disk, resumed where a try broke off.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/core/progress.h"
#include "vitrum/fetch/digest.h"
#include "vitrum/fetch/http.h"

namespace vitrum {

struct RemoteFile {
  std::string path;               // where it goes
  std::vector<std::string> urls;  // tried in turn
  int64_t size = 0;
  DigestKind kind = DigestKind::kSha256;
  std::string digest;
  std::string local = {};  // may hold the same file already: a cache
};

// Of two processes that fetch into one folder the second is refused: both would write to the same
// part of a file, and one after the other had checked and renamed it.
class DownloadLock {
 public:
  explicit DownloadLock(const std::string& folder);  // which it makes
  ~DownloadLock();
  DownloadLock(const DownloadLock&) = delete;
  DownloadLock& operator=(const DownloadLock&) = delete;

 private:
  int fd_;
};

struct DownloadOptions {
  int tries = 3;     // per URL, where the network or the server fails
  double pause = 1;  // seconds before the second try, twice that before the third
  bool quiet = false;
};

// The server says that it has no such file, or not for us: another try would hear the same.
class NotThere : public Error {
 public:
  using Error::Error;
};

// Fetches every file that is not there yet; false when stopped. What was received of a file waits
// in `path`.<digest>.part, so the same call goes on from there; the checksum is of the whole file,
// whoever sent its parts. Fails where the disk has too little room, and with the last URL's reason
// where a file cannot be had.
bool download_all(HttpClient& client, const std::vector<RemoteFile>& files,
                  const DownloadOptions& options);

// What an answer other than 200 and 206 says, for people.
Error status_error(const HttpAnswer& answer, const std::string& url);
// 5xx and the like, or no answer at all.
bool is_worth_retry(const HttpAnswer& answer);

// Calls `attempt` until its answer is not worth a retry, with pauses; at most options.tries times.
template <class Attempt>
HttpAnswer with_retries(HttpClient& client, const DownloadOptions& options, const Attempt& attempt);
void pause_unless_stopped(HttpClient& client, double seconds);

template <class Attempt>
HttpAnswer with_retries(HttpClient& client, const DownloadOptions& options,
                        const Attempt& attempt) {
  for (int n = 1;; ++n) {
    HttpAnswer answer = attempt();
    if (answer.stopped || !is_worth_retry(answer) || n >= options.tries) return answer;
    pause_unless_stopped(client, options.pause * (1 << (n - 1)));
  }
}

}  // namespace vitrum
