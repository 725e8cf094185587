// Communicator::exchange for tensors of a device: through host memory, where the host does not see
// the device's. For what is done now and then; steps use a Link.
#pragma once
#include <span>

#include "vitrum/runtime/link.h"

namespace vitrum {

void exchange_views(Communicator& comm, Backend& backend, std::span<const RankView> sends,
                    std::span<const RankView> receives);

// Each rank's part of something, by rank, to all others.
void all_gather_views(Communicator& comm, Backend& backend, std::span<const TensorView> parts);

}  // namespace vitrum
