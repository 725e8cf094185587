// One connection to every other process, over which bulk data goes.
#pragma once
#include <cstdint>
#include <vector>

#include "vitrum/dist/descriptor.h"
#include "vitrum/dist/transport.h"

namespace vitrum {

class Mesh final : public Transport {
 public:
  // By rank; none to itself.
  explicit Mesh(std::vector<Descriptor> peers);

  void exchange(std::span<const Communicator::Send> sends,
                std::span<const Communicator::Receive> receives,
                const std::function<void()>& check) override;

 private:
  std::vector<Descriptor> peers_;
  uint64_t exchanges_ = 0;
};

}  // namespace vitrum
