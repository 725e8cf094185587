#include "vitrum/dist/group.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

namespace vitrum {
namespace {

using namespace std::chrono_literals;

// That a process of ours has to end by itself, where all went well and where not.
constexpr std::chrono::milliseconds kFarewell = 30s, kShortFarewell = 500ms;

std::vector<std::string> names_of(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (size_t r = 0; r < hosts.size(); ++r)
    names.push_back(fmt::format("rank {} ({})", r, hosts[r]));
  return names;
}

}  // namespace

Group::Group(Connections c, std::chrono::seconds timeout)
    : rank_(c.rank),
      local_rank_(c.local_rank),
      local_size_(c.local_size),
      names_(names_of(c.hosts)),
      children_(c.children),
      transport_(std::make_unique<Mesh>(std::move(c.data))) {
  control_.emplace(rank_, std::move(c.lines), names_, timeout, children_);
}

Group::~Group() {
  control_.reset();  // closes the lines: whoever still works learns that this process is gone
  end_children();
}

void Group::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  check();
  try {
    transport_->exchange(sends, receives, [this] { check(); });
  } catch (const PeerGone& gone) {
    control_->explain(gone.rank);
  }
}

void Group::finish() {
  control_->finish();
  transport_->finish();
}

// One that is stopped, or computes for long, does not end by itself.
void Group::end_children() {
  const auto limit = std::chrono::steady_clock::now() + (failed_ ? kShortFarewell : kFarewell);
  for (const pid_t child : children_) {
    pid_t ended = 0;
    while ((ended = waitpid(child, nullptr, WNOHANG)) == 0 &&
           std::chrono::steady_clock::now() < limit)
      usleep(2000);
    if (ended != 0) continue;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

}  // namespace vitrum
