// Where the time of something goes that is done one part after the other.
#pragma once
#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/error.h"

namespace vitrum {

class Laps {
 public:
  struct Lap {
    std::string_view part;
    double seconds = 0;
  };

  // What was done since the last call, or since the beginning, was this part; a part may be done
  // again and again. `part` outlives this.
  void end(std::string_view part) {
    const auto now = Clock::now();
    const auto known = std::ranges::find(all_, part, &Lap::part);
    Lap& lap = known == all_.end() ? all_.emplace_back(Lap{part}) : *known;
    lap.seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  const std::vector<Lap>& all() const { return all_; }

  std::string text() const {  // "device 1.21 s, data 0.20 s"
    std::string text;
    for (const Lap& lap : all_)
      text += fmt::format("{}{} {:.2f} s", text.empty() ? "" : ", ", lap.part, lap.seconds);
    return text;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::vector<Lap> all_;
};

}  // namespace vitrum
