// Progress on stderr: a bar that looks like tqdm's on a terminal, else a plain line every ten
// seconds.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace vitrum {

// Colour only on a terminal that is not dumb, and never with a non-empty NO_COLOR.
bool use_colour(std::FILE* stream);

// Columns of the terminal behind `stream`; 80 where it does not say.
int terminal_width(std::FILE* stream);

enum class ProgressUnit : uint8_t { kSteps, kBytes };

struct ProgressState {
  std::string_view label, postfix;
  int64_t done = 0, total = 0;  // total 0: unknown
  double seconds = 0;           // since the start
  double rate = 0;              // steps a second; 0: not known yet
  ProgressUnit unit = ProgressUnit::kSteps;
};

// "train:  45%|████▌     | 45/100 [00:10<00:12,  4.50it/s, loss=0.31]", never wider than `width`
// columns.
std::string progress_bar(const ProgressState& state, int width, bool unicode);
// The same without bar and padding, for log files.
std::string progress_line(const ProgressState& state);

class Progress {
 public:
  // `initial` steps were done before (a resumed epoch): they count for the bar, not for the rate.
  Progress(std::string label, int64_t total, bool quiet, int64_t initial = 0,
           ProgressUnit unit = ProgressUnit::kSteps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Cheap when it is not yet time to draw. due() tells whether building a postfix is worth while.
  void update(int64_t done, std::string_view postfix = {});
  bool due() const;
  void finish();  // draws the last state and ends the line
  void clear();   // takes the bar off the line to make room for a message; update() redraws it

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  ProgressState state() const;

  std::string label_, postfix_;
  int64_t total_, initial_, done_;
  ProgressUnit unit_;
  bool quiet_, terminal_, unicode_;
  bool drawn_ = false, finished_ = false;
  Clock::time_point start_, next_draw_;
};

}  // namespace vitrum
