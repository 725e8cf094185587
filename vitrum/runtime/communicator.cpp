#include "vitrum/runtime/communicator.h"

#include <algorithm>

namespace vitrum {
namespace {
constexpr uint64_t kMostText = 16 << 20;
}

void all_gather(Communicator& comm, std::span<const std::span<std::byte>> all) {
  std::vector<Communicator::Send> sends;
  std::vector<Communicator::Receive> receives;
  for (int r = 0; r < comm.size(); ++r) {
    if (r == comm.rank()) continue;
    sends.push_back({r, all[static_cast<size_t>(comm.rank())]});
    receives.push_back({r, all[static_cast<size_t>(r)]});
  }
  comm.exchange(sends, receives);
}

void broadcast(Communicator& comm, std::span<std::byte> bytes) {
  std::vector<Communicator::Send> sends;
  std::vector<Communicator::Receive> receives;
  if (comm.first())
    for (int r = 1; r < comm.size(); ++r) sends.push_back({r, bytes});
  else
    receives.push_back({0, bytes});
  comm.exchange(sends, receives);
}

int largest_of(Communicator& comm, int own) {
  std::vector<int> all(static_cast<size_t>(comm.size()));
  all[static_cast<size_t>(comm.rank())] = own;
  std::vector<std::span<std::byte>> places;
  for (int& one : all) places.push_back(std::as_writable_bytes(std::span(&one, 1)));
  all_gather(comm, places);
  return *std::max_element(all.begin(), all.end());
}

std::vector<std::string> all_gather_text(Communicator& comm, const std::string& own) {
  const auto n = static_cast<size_t>(comm.size()), me = static_cast<size_t>(comm.rank());
  std::vector<uint64_t> lengths(n);
  lengths[me] = own.size();
  std::vector<std::span<std::byte>> places;
  for (uint64_t& length : lengths) places.push_back(std::as_writable_bytes(std::span(&length, 1)));
  all_gather(comm, places);
  std::vector<std::string> all(n);
  for (size_t r = 0; r < n; ++r) {
    if (lengths[r] > kMostText)
      fail("{} sends {} bytes of text", comm.name_of(static_cast<int>(r)), lengths[r]);
    if (r == me)
      all[r] = own;
    else
      all[r].resize(lengths[r]);
    places[r] = std::as_writable_bytes(std::span(all[r]));
  }
  all_gather(comm, places);
  return all;
}

}  // namespace vitrum
