// What a launcher says in the environment: torchrun, srun, mpirun.
#pragma once
#include <functional>
#include <optional>
#include <string>

namespace vitrum {

struct World {
  std::string launcher;
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string address;  // of rank 0; "127.0.0.1" where all are on one machine
  int port = 0;
  std::string secret = {};  // that processes prove to each other to know

  bool one_machine() const { return local_size == size; }
};

// Of one variable; null where it is not set.
using Environment = std::function<const char*(const char* name)>;

// Nothing where the environment speaks of no more than one process. What is there but cannot work
// is a usage error.
std::optional<World> world_of(const Environment& get);

}  // namespace vitrum
