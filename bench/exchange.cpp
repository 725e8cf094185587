// How fast the processes of a run exchange bytes, as a training step does it: every one gives every
// other its part.
//   bench_exchange [MEGABYTES] [RANKS]      (RANKS: forked here, 2 unless a launcher has started
//   us) mpirun -n 2 bench_exchange              (VITRUM_MPI=0: over sockets)
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "vitrum/dist/launch.h"
#include "vitrum/dist/use_mpi.h"

int main(int argc, char** argv) {
  using namespace vitrum;
  using Clock = std::chrono::steady_clock;
  const auto bytes = static_cast<size_t>(argc > 1 ? std::atoi(argv[1]) : 22) << 20;
  const bool launched = std::getenv("RANK") || std::getenv("OMPI_COMM_WORLD_RANK");
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::unique_ptr<Group> group = launch({.ranks = launched ? 0 : ranks});
  if (!group) return 1;
  use_mpi(*group);
  const auto size = static_cast<size_t>(group->size());
  std::vector<std::byte> all(bytes / size * size);
  std::vector<std::span<std::byte>> parts;
  for (size_t r = 0; r < size; ++r)
    parts.push_back(std::span(all).subspan(r * (bytes / size), bytes / size));
  std::vector<double> seconds;
  for (int round = 0; round < 21; ++round) {
    largest_of(*group, 0);
    const auto from = Clock::now();
    all_gather(*group, parts);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - from).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + 10, seconds.end());
  if (group->first())
    fmt::print("{} processes, {} MiB in all: {:.2f} ms, {:.2f} GB/s received by each\n", size,
               bytes >> 20, 1e3 * seconds[10],
               static_cast<double>(all.size() - parts[0].size()) / seconds[10] / 1e9);
  group->finish();
}
