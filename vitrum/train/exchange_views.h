// Communicator::exchange for tensors of a device: through host memory, where the host does not see
// the device's.
#pragma once
#include <span>

#include "vitrum/runtime/backend.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {

struct RankView {
  int rank = 0;  // that it goes to, or comes from
  TensorView view;
};

void exchange_views(Communicator& comm, Backend& backend, std::span<const RankView> sends,
                    std::span<const RankView> receives);

// Each rank's part of something, by rank, to all others.
void all_gather_views(Communicator& comm, Backend& backend, std::span<const TensorView> parts);

}  // namespace vitrum
