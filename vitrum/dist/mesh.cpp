#include "vitrum/dist/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

constexpr int kPollMilliseconds = 100;

// Opens what one process sends another in one exchange: both must be at the same one.
struct Header {
  uint64_t exchange = 0, bytes = 0;
  bool operator==(const Header&) const = default;
};

// What is left to move in one direction between two processes.
template <class Byte>
struct Queue {
  std::vector<std::span<Byte>> parts = {};
  size_t next = 0;
  bool done() {
    while (next < parts.size() && parts[next].empty()) ++next;
    return next == parts.size();
  }
};

struct Traffic {
  Header sent = {}, expected = {}, received = {};
  Queue<const std::byte> out = {};
  Queue<std::byte> in = {};
};

// Moves as much as the socket takes at once. `move` is send() or recv(); false: the other end is
// gone.
template <class Byte, class Move>
bool pump(Queue<Byte>& queue, const Move& move) {
  while (!queue.done()) {
    std::span<Byte>& part = queue.parts[queue.next];
    const ssize_t moved = move(part.data(), part.size());
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (moved <= 0) return false;
    part = part.subspan(static_cast<size_t>(moved));
  }
  return true;
}

}  // namespace

Mesh::Mesh(std::vector<Descriptor> peers) : peers_(std::move(peers)) {
  for (const Descriptor& peer : peers_)
    if (peer) fcntl(peer.get(), F_SETFL, O_NONBLOCK);
}

void Mesh::exchange(std::span<const Communicator::Send> sends,
                    std::span<const Communicator::Receive> receives,
                    const std::function<void()>& check) {
  std::vector<Traffic> traffic(peers_.size());
  const uint64_t number = ++exchanges_;
  for (size_t r = 0; r < peers_.size(); ++r) {
    Traffic& t = traffic[r];
    if (!peers_[r]) continue;
    t.out.parts.push_back(std::as_bytes(std::span(&t.sent, 1)));
    t.in.parts.push_back(std::as_writable_bytes(std::span(&t.received, 1)));
    t.sent.exchange = t.expected.exchange = number;
  }
  for (const auto& [to, bytes] : sends) {
    Traffic& t = traffic[static_cast<size_t>(to)];
    t.out.parts.push_back(bytes), t.sent.bytes += bytes.size();
  }
  for (const auto& [from, bytes] : receives) {
    Traffic& t = traffic[static_cast<size_t>(from)];
    t.in.parts.push_back(bytes), t.expected.bytes += bytes.size();
  }
  std::vector<pollfd> waiting;
  std::vector<size_t> whose;
  while (true) {
    waiting.clear(), whose.clear();
    for (size_t r = 0; r < peers_.size(); ++r) {
      if (!peers_[r]) continue;
      const int events =
          (traffic[r].in.done() ? 0 : POLLIN) | (traffic[r].out.done() ? 0 : POLLOUT);
      if (events == 0) continue;
      waiting.push_back({peers_[r].get(), static_cast<short>(events), 0});
      whose.push_back(r);
    }
    if (waiting.empty()) return;
    if (poll(waiting.data(), waiting.size(), kPollMilliseconds) <= 0) check();
    for (size_t i = 0; i < waiting.size(); ++i) {
      Traffic& t = traffic[whose[i]];
      const int fd = waiting[i].fd, rank = static_cast<int>(whose[i]);
      const auto send_some = [&](const std::byte* p, size_t n) {
        return send(fd, p, n, MSG_NOSIGNAL);
      };
      const auto receive_some = [&](std::byte* p, size_t n) { return recv(fd, p, n, 0); };
      if ((waiting[i].revents & POLLOUT) != 0 && !pump(t.out, send_some)) throw PeerGone{rank};
      if ((waiting[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !t.in.done() &&
          !pump(t.in, receive_some))
        throw PeerGone{rank};
      if (t.in.next > 0 && t.received != t.expected)
        fail("rank {} is at exchange {} with {} bytes; expected exchange {} with {}", rank,
             t.received.exchange, t.received.bytes, t.expected.exchange, t.expected.bytes);
    }
  }
}

}  // namespace vitrum
