// How the processes of a run find each other.
#pragma once
#include <chrono>
#include <memory>

#include "vitrum/dist/group.h"

namespace vitrum {

struct LaunchOptions {
  int ranks = 0;  // processes to start on this machine; 0: as the environment says, or one
  std::chrono::seconds timeout{60};  // without a sign of life
};

// Returns in every process of the run; null where there is one only. A launcher's processes find
// each other (join.h). With `ranks` this process becomes rank 0 and forks the others, connected by
// pairs of sockets, so that nothing listens: to be called before there is any thread or device.
std::unique_ptr<Group> launch(const LaunchOptions& options);

}  // namespace vitrum
