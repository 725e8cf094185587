// Who is still there. Every process has a connection to rank 0 for this alone, and a thread that
// says so once a second; rank 0 decides what has happened, and tells the others.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/dist/descriptor.h"

namespace vitrum {

// Why the run ends.
struct Verdict {
  ErrorKind kind = ErrorKind::kFailed;
  std::string text;
};

class Control {
 public:
  // `lines`: by rank; of rank 0 to all others, of the others to rank 0 alone. `names`: "rank 3
  // (node07)". `children`: processes that end with this one.
  Control(int rank, std::vector<Descriptor> lines, std::vector<std::string> names,
          std::chrono::seconds timeout, std::vector<pid_t> children);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  void note_step(int64_t step) { step_ = step; }
  void set_advice(std::string text);  // what to do where a process is lost

  bool speaks();  // see Group
  // Throws the verdict, where there is one.
  void check();
  // The connection of the mesh to a process has ended: throws what became of it.
  [[noreturn]] void explain(int rank);
  void abort(ErrorKind kind, const std::string& why);
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Line {
    Descriptor fd;
    Clock::time_point heard;
    std::string pending;  // bytes of a frame that is not complete
    bool done = false;    // it said that it has finished
  };
  enum class Frame : uint8_t { kAlive, kDone, kVerdict };

  void watch();
  bool read_from(size_t rank);  // false: the connection has ended
  void take_frames(size_t rank);
  void look_for_silence(Clock::time_point now);
  void decide(ErrorKind kind, std::string text);  // unless that was done before
  void tell(Frame frame, ErrorKind kind = ErrorKind::kFailed, const std::string& text = {});
  bool all_done() const;
  void end_if_ignored(Clock::time_point now);
  bool is_speaker() const { return rank_ == 0 || (rank_ == 1 && !lines_[0].fd && !told_); }

  const int rank_;
  const std::vector<std::string> names_;
  const std::chrono::seconds timeout_;
  const std::vector<pid_t> children_;
  std::atomic<int64_t> step_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Line> lines_;
  std::string advice_;
  std::optional<Verdict> verdict_;
  Clock::time_point decided_at_;
  bool told_ = false;   // the verdict is the first process's, who says so itself
  bool taken_ = false;  // the verdict was thrown, or made, by the thread that trains
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vitrum
