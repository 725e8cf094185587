#include "vitrum/dist/join.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "vitrum/core/error.h"
#include "vitrum/dist/proof.h"

namespace vitrum {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 600s;     // until every process has come
constexpr int kGreetingSeconds = 5;  // that a stranger may hold us up
constexpr uint32_t kProtocol = 0x56490001;

enum class Use : uint8_t { kLine, kData };

// Who connects, and what for.
struct Greeting {
  uint32_t protocol = kProtocol;
  int32_t rank = 0, size = 0;
  Use use = Use::kLine;
  std::array<uint8_t, 3> zero = {};
};

void set_timeout(int fd, int seconds) {
  const timeval limit{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bool send_bytes(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent, bytes -= static_cast<size_t>(sent);
  }
  return true;
}
bool receive_bytes(int fd, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got, bytes -= static_cast<size_t>(got);
  }
  return true;
}

Nonce fresh_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size()))
    fail("no random numbers: {}", std::strerror(errno));
  return nonce;
}

std::string bytes_of(const Greeting& greeting) {
  return {reinterpret_cast<const char*>(&greeting), sizeof greeting};
}

// Each side sends a number that nobody could foresee, and what only the secret makes of both.
bool greet(int fd, const Greeting& own, const std::string& secret) {
  const Nonce mine = fresh_nonce();
  Nonce theirs;
  Proof answer;
  set_timeout(fd, kGreetingSeconds);
  if (!receive_bytes(fd, theirs.data(), theirs.size())) return false;
  const Proof proof = prove(secret, "connects", theirs, mine, bytes_of(own));
  return send_bytes(fd, &own, sizeof own) && send_bytes(fd, mine.data(), mine.size()) &&
         send_bytes(fd, proof.data(), proof.size()) &&
         receive_bytes(fd, answer.data(), answer.size()) &&
         same(answer, prove(secret, "accepts", theirs, mine, bytes_of(own)));
}
std::optional<Greeting> welcome(int fd, const std::string& secret) {
  const Nonce mine = fresh_nonce();
  Greeting theirs;
  Nonce nonce;
  Proof proof;
  set_timeout(fd, kGreetingSeconds);
  const bool known = send_bytes(fd, mine.data(), mine.size()) &&
                     receive_bytes(fd, &theirs, sizeof theirs) &&
                     receive_bytes(fd, nonce.data(), nonce.size()) &&
                     receive_bytes(fd, proof.data(), proof.size()) &&
                     same(proof, prove(secret, "connects", mine, nonce, bytes_of(theirs)));
  if (!known || theirs.protocol != kProtocol) return {};
  const Proof answer = prove(secret, "accepts", mine, nonce, bytes_of(theirs));
  if (!send_bytes(fd, answer.data(), answer.size())) return {};
  return theirs;
}

// Where a process can be reached, as it travels.
struct Place {
  std::array<char, 64> host = {};
  sockaddr_storage address = {};
  socklen_t length = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
Addresses resolve(const std::string& host, int port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) fail_usage("MASTER_ADDR '{}': {}", host, gai_strerror(error));
  return {found, freeaddrinfo};
}

Descriptor listen_at(const sockaddr* address, socklen_t length, int backlog) {
  Descriptor fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!fd || bind(fd.get(), address, length) != 0 || listen(fd.get(), backlog) != 0) return {};
  return fd;
}

Descriptor connect_to(const sockaddr* address, socklen_t length) {
  Descriptor fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), address, length) != 0) return {};
  return fd;
}

class Joiner {
 public:
  explicit Joiner(const World& world) : world_(world), places_(ranks()) {
    all_.rank = world.rank, all_.local_rank = world.local_rank;
    all_.local_size = world.local_size;
    all_.data.resize(ranks()), all_.lines.resize(ranks());
    gethostname(own().host.data(), own().host.size() - 1);
  }

  Connections run() {
    const Addresses first = resolve(world_.address, world_.port);
    if (world_.rank == 0)
      gather(first.get());
    else
      come(first.get());
    for (size_t r = 0; r < ranks(); ++r) {
      places_[r].host.back() = 0;
      all_.hosts.emplace_back(places_[r].host.data());
      for (const Descriptor* fd : {&all_.data[r], &all_.lines[r]}) {
        const int yes = 1;
        if (*fd) setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      }
    }
    return std::move(all_);
  }

 private:
  size_t ranks() const { return static_cast<size_t>(world_.size); }
  Place& own() { return places_[static_cast<size_t>(world_.rank)]; }

  // Rank 0: two connections of everybody, then the list of all places.
  void gather(const addrinfo* at) {
    Descriptor listener;
    for (; at && !listener; at = at->ai_next)
      listener = listen_at(at->ai_addr, at->ai_addrlen, 2 * world_.size);
    if (!listener)
      fail_usage("rank 0 cannot listen at MASTER_ADDR {}, port {}: {}", world_.address, world_.port,
                 std::strerror(errno));
    accept_until(listener.get(), [&] {
      for (size_t r = 1; r < ranks(); ++r)
        if (!all_.data[r] || !all_.lines[r]) return false;
      return true;
    });
    for (size_t r = 1; r < ranks(); ++r)
      if (!receive_bytes(all_.data[r].get(), &places_[r], sizeof(Place))) lost(r);
    for (size_t r = 1; r < ranks(); ++r)
      if (!send_bytes(all_.data[r].get(), places_.data(), ranks() * sizeof(Place))) lost(r);
  }

  // The others: to rank 0, then to each other, the later ones to the earlier.
  void come(const addrinfo* first) {
    all_.lines[0] = reach(first, Use::kLine);
    all_.data[0] = reach(first, Use::kData);
    own().length = sizeof own().address;
    auto* address = reinterpret_cast<sockaddr*>(&own().address);
    getsockname(all_.data[0].get(), address, &own().length);
    if (address->sa_family == AF_INET)
      reinterpret_cast<sockaddr_in*>(address)->sin_port = 0;
    else
      reinterpret_cast<sockaddr_in6*>(address)->sin6_port = 0;
    const Descriptor listener = listen_at(address, own().length, world_.size);
    if (!listener) fail("rank {} cannot listen: {}", world_.rank, std::strerror(errno));
    getsockname(listener.get(), address, &own().length);
    if (!send_bytes(all_.data[0].get(), &own(), sizeof(Place))) lost(0);
    set_timeout(all_.data[0].get(), static_cast<int>(kPatience.count()));
    if (!receive_bytes(all_.data[0].get(), places_.data(), ranks() * sizeof(Place))) lost(0);
    const auto me = static_cast<size_t>(world_.rank);
    for (size_t r = 1; r < me; ++r) {
      addrinfo at{};
      at.ai_addr = reinterpret_cast<sockaddr*>(&places_[r].address);
      at.ai_addrlen = std::min<socklen_t>(places_[r].length, sizeof(sockaddr_storage));
      all_.data[r] = reach(&at, Use::kData);
    }
    accept_until(listener.get(), [&] {
      for (size_t r = me + 1; r < ranks(); ++r)
        if (!all_.data[r]) return false;
      return true;
    });
  }

  Descriptor reach(const addrinfo* to, Use use) {
    const Greeting own{.rank = world_.rank, .size = world_.size, .use = use};
    while (Clock::now() < limit_) {
      for (const addrinfo* at = to; at; at = at->ai_next) {
        Descriptor fd = connect_to(at->ai_addr, at->ai_addrlen);
        if (!fd) continue;
        if (greet(fd.get(), own, world_.secret)) return fd;
        fail_usage(
            "rank {} was turned away at {}, port {}: it has another VITRUM_SECRET or version, "
            "or something else listens there",
            world_.rank, world_.address, world_.port);
      }
      usleep(50'000);
    }
    throw Error(kRankLost,
                fmt::format("rank {} did not find rank 0 at {}, port {} in {} s", world_.rank,
                            world_.address, world_.port, kPatience.count()));
  }

  // Whoever proves to belong to this run takes its place; others are hung up on.
  template <class Done>
  void accept_until(int listener, const Done& done) {
    set_timeout(listener, 1);
    while (!done()) {
      if (Clock::now() > limit_)
        throw Error(kRankLost, fmt::format("rank {}: not every process has come in {} s",
                                           world_.rank, kPatience.count()));
      Descriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) continue;
      const std::optional<Greeting> who = welcome(fd.get(), world_.secret);
      if (!who || who->rank <= 0 || who->rank >= world_.size || who->size != world_.size) continue;
      std::vector<Descriptor>& row = who->use == Use::kLine ? all_.lines : all_.data;
      Descriptor& place = row[static_cast<size_t>(who->rank)];
      if (!place && who->rank != world_.rank) place = std::move(fd);
    }
  }

  [[noreturn]] void lost(size_t rank) const {
    throw Error(kRankLost, fmt::format("rank {} lost rank {} while the processes connected",
                                       world_.rank, rank));
  }

  const World& world_;
  std::vector<Place> places_;
  Connections all_;
  const Clock::time_point limit_ = Clock::now() + kPatience;
};

}  // namespace

Connections join_world(const World& world) { return Joiner(world).run(); }

}  // namespace vitrum
