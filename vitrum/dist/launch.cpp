#include "vitrum/dist/launch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/dist/join.h"

namespace vitrum {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// A pair for every two processes and each of two purposes, made before any of them exists.
struct Pairs {
  using Row = std::vector<Descriptor>;
  std::vector<Row> ends;  // [rank][other]

  explicit Pairs(size_t size) : ends(size) {
    for (Row& row : ends) row.resize(size);
  }
  void connect(size_t a, size_t b) {
    std::array<int, 2> fds{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
      fail_exhausted("no room for the connections between processes: {}", std::strerror(errno));
    ends[a][b] = Descriptor(fds[0]), ends[b][a] = Descriptor(fds[1]);
  }
};

std::unique_ptr<Group> fork_ranks(int ranks, std::chrono::seconds timeout) {
  const auto size = static_cast<size_t>(ranks);
  Pairs data(size), lines(size);
  for (size_t a = 0; a < size; ++a)
    for (size_t b = a + 1; b < size; ++b) {
      data.connect(a, b);
      if (a == 0) lines.connect(a, b);
    }
  Connections own{.local_size = ranks, .hosts = std::vector(size, host_name())};
  for (int r = 1; r < ranks; ++r) {
    const pid_t child = fork();
    if (child < 0) fail_exhausted("cannot start process {}: {}", r, std::strerror(errno));
    if (child == 0) {
      own.rank = own.local_rank = r, own.children.clear();
      break;
    }
    own.children.push_back(child);
  }
  const auto me = static_cast<size_t>(own.rank);
  own.data = std::move(data.ends[me]), own.lines = std::move(lines.ends[me]);
  data.ends.clear(), lines.ends.clear();  // others' ends: a process that dies must close its own
  return std::make_unique<Group>(std::move(own), timeout);
}

}  // namespace

std::unique_ptr<Group> launch(const LaunchOptions& options) {
  const std::optional<World> world = world_of([](const char* name) { return std::getenv(name); });
  if (world && options.ranks > 0)
    fail_usage("{} has started {} processes already; leave out --ranks", world->launcher,
               world->size);
  if (world) return std::make_unique<Group>(join_world(*world), options.timeout);
  return options.ranks > 1 ? fork_ranks(options.ranks, options.timeout) : nullptr;
}

}  // namespace vitrum
