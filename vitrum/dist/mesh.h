// One connection to every other process, over which bulk data goes.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "vitrum/dist/descriptor.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {

// The connection to this process has ended.
struct PeerGone {
  int rank;
};

class Mesh {
 public:
  // By rank; none to itself.
  explicit Mesh(std::vector<Descriptor> peers);

  // See Communicator. `check` is called now and then while nothing moves; it may throw.
  void exchange(std::span<const Communicator::Send> sends,
                std::span<const Communicator::Receive> receives,
                const std::function<void()>& check);

 private:
  std::vector<Descriptor> peers_;
  uint64_t exchanges_ = 0;
};

}  // namespace vitrum
