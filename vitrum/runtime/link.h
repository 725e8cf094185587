// How tensors get from the device of one process to those of others. It moves bytes and adds
// nothing: results do not depend on which link there is.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/runtime/backend.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {

struct RankView {
  int rank = 0;  // that it goes to, or comes from
  TensorView view;
};

struct RankViews {
  std::vector<RankView> sends, receives;
};

class Link {
 public:
  explicit Link(Communicator& comm) : comm_(comm) {}
  virtual ~Link() = default;

  Communicator& comm() const { return comm_; }
  // Starts an exchange of what the views hold when it is launched. All processes launch the same
  // ones in the same order. Views are of one process's own memory and stay where they are; what is
  // sent does not change, and what is received is not read, before arrived() was launched.
  virtual std::shared_ptr<Kernel> exchange(RankViews views) = 0;
  virtual std::shared_ptr<Kernel> arrived() = 0;  // of all exchanges that were started
  // Whether the device goes on computing while bytes are on their way.
  virtual bool overlaps() const { return false; }
  virtual std::string name() const = 0;

 private:
  Communicator& comm_;
};

// Of the backend; or, where the host sees its memory, the communicator itself.
std::shared_ptr<Link> make_link(Backend& backend, Communicator& comm);

// Each rank's part of something, by rank, to all others. Alone, a process sends to itself.
RankViews gather_views(const Communicator& comm, const std::vector<TensorView>& parts);
inline bool is_peer(const Communicator& comm, int rank) {
  return rank != comm.rank() || comm.size() == 1;
}

// Communicator::exchange in which a process may send to itself, too.
inline void exchange_all(Communicator& comm, std::span<const Communicator::Send> sends,
                         std::span<const Communicator::Receive> receives) {
  std::vector<std::span<const std::byte>> own;
  for (const auto& [to, bytes] : sends)
    if (to == comm.rank()) own.push_back(bytes);
  size_t next = 0;
  for (const auto& [from, bytes] : receives)
    if (from == comm.rank()) std::memmove(bytes.data(), own[next++].data(), bytes.size());
  if (comm.size() > 1) comm.exchange(sends, receives);
}

}  // namespace vitrum
