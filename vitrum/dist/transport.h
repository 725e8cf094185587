// How bulk data gets from process to process.
#pragma once
#include <functional>
#include <span>

#include "vitrum/runtime/communicator.h"

namespace vitrum {

// The connection to this process has ended.
struct PeerGone {
  int rank;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // See Communicator. `check` is called now and then while nothing moves; it may throw.
  virtual void exchange(std::span<const Communicator::Send> sends,
                        std::span<const Communicator::Receive> receives,
                        const std::function<void()>& check) = 0;
  // Every process has done its work.
  virtual void finish() {}
};

}  // namespace vitrum
