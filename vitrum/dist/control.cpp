#include "vitrum/dist/control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "vitrum/runtime/communicator.h"

namespace vitrum {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 1s;       // how often a process says that it is there
constexpr auto kGrace = 1500ms;  // that the thread that trains has to notice a verdict
constexpr auto kPatience = 5s;   // with rank 0, to say what has happened
constexpr uint32_t kMostText = 1 << 16;

// A frame on a line, before its text.
struct FrameHead {
  uint8_t frame = 0, kind = 0;
  uint16_t zero = 0;
  uint32_t bytes = 0;
};

// Frames are short; a line that takes none of one for long is as good as dead.
void send_all(int fd, std::string_view bytes) {
  for (int tries = 0; !bytes.empty() && tries < 20;) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, 50), ++tries;
    } else {
      return;  // whoever reads the line learns of it
    }
  }
}

}  // namespace

Control::Control(int rank, std::vector<Descriptor> lines, std::vector<std::string> names,
                 std::chrono::seconds timeout, std::vector<pid_t> children)
    : rank_(rank), names_(std::move(names)), timeout_(timeout), children_(std::move(children)) {
  for (Descriptor& line : lines) lines_.push_back({std::move(line), Clock::now()});
  for (const Line& line : lines_)
    if (line.fd) fcntl(line.fd.get(), F_SETFL, O_NONBLOCK);
  thread_ = std::thread([this] { watch(); });
}

Control::~Control() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Control::set_advice(std::string text) {
  const std::lock_guard lock(mutex_);
  advice_ = std::move(text);
}

bool Control::speaks() {
  const std::lock_guard lock(mutex_);
  return is_speaker();
}

void Control::tell(Frame frame, ErrorKind kind, const std::string& text) {
  const std::string body = text.substr(0, kMostText);
  const FrameHead head{static_cast<uint8_t>(frame), static_cast<uint8_t>(kind), 0,
                       static_cast<uint32_t>(body.size())};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += body;
  for (const Line& line : lines_)
    if (line.fd) send_all(line.fd.get(), bytes);
}

void Control::decide(ErrorKind kind, std::string text) {
  if (verdict_) return;
  if (kind == kRankLost && !advice_.empty()) text += "; " + advice_;
  verdict_ = Verdict{kind, std::move(text)};
  decided_at_ = Clock::now();
  if (rank_ == 0) tell(Frame::kVerdict, verdict_->kind, verdict_->text);
  changed_.notify_all();
}

bool Control::read_from(size_t rank) {
  char buffer[4096];
  while (true) {
    const ssize_t got = recv(lines_[rank].fd.get(), buffer, sizeof buffer, 0);
    if (got > 0)
      lines_[rank].pending.append(buffer, static_cast<size_t>(got));
    else if (got < 0 && errno == EINTR)
      continue;
    else
      return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

void Control::take_frames(size_t rank) {
  Line& line = lines_[rank];
  FrameHead head;
  while (line.pending.size() >= sizeof head) {
    std::memcpy(&head, line.pending.data(), sizeof head);
    const size_t bytes = std::min(head.bytes, kMostText);
    if (line.pending.size() < sizeof head + bytes) return;
    std::string text = line.pending.substr(sizeof head, bytes);
    line.pending.erase(0, sizeof head + bytes);
    switch (static_cast<Frame>(head.frame)) {
      case Frame::kAlive: break;
      case Frame::kDone: line.done = true, changed_.notify_all(); break;
      case Frame::kVerdict:  // rank 0 hears it from the one that failed, the others from rank 0
        told_ = told_ || rank_ != 0;
        decide(static_cast<ErrorKind>(head.kind),
               rank_ == 0 ? names_[rank] + ": " + text : std::move(text));
        break;
    }
  }
}

void Control::look_for_silence(Clock::time_point now) {
  for (size_t r = 0; r < lines_.size(); ++r)
    if (lines_[r].fd && !lines_[r].done && now - lines_[r].heard > timeout_)
      decide(kRankLost, fmt::format("{} has not answered for {} s at step {}", names_[r],
                                    timeout_.count(), step_.load()));
}

// The thread that trains may be in the middle of a long computation.
void Control::end_if_ignored(Clock::time_point now) {
  if (!verdict_ || taken_ || now - decided_at_ < kGrace) return;
  if (is_speaker()) {
    const std::string line = "vitrum: " + verdict_->text + "\n";
    [[maybe_unused]] const ssize_t lost = write(STDERR_FILENO, line.data(), line.size());
  }
  for (const pid_t child : children_) kill(child, SIGKILL);
  _exit(static_cast<int>(verdict_->kind));
}

void Control::watch() {
  auto next_beat = Clock::now(), last = next_beat;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto now = Clock::now();
    // After a pause of our own (Ctrl-Z, a sleeping machine) nobody else was silent.
    if (now - last > 3 * kBeat)
      for (Line& line : lines_) line.heard = now;
    last = now;
    if (now >= next_beat) tell(Frame::kAlive), next_beat = now + kBeat;
    look_for_silence(now);
    end_if_ignored(now);
    std::vector<pollfd> waiting;
    std::vector<size_t> whose;
    for (size_t r = 0; r < lines_.size(); ++r)
      if (lines_[r].fd) waiting.push_back({lines_[r].fd.get(), POLLIN, 0}), whose.push_back(r);
    lock.unlock();
    poll(waiting.data(), waiting.size(), 100);
    lock.lock();
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      Line& line = lines_[whose[i]];
      const bool open = read_from(whose[i]);
      line.heard = Clock::now();
      take_frames(whose[i]);
      if (open) continue;
      line.fd = {};
      changed_.notify_all();
      if (!line.done)
        decide(kRankLost, fmt::format("{} died at step {}", names_[whose[i]], step_.load()));
    }
  }
}

void Control::check() {
  const std::lock_guard lock(mutex_);
  if (!verdict_) return;
  taken_ = true;
  throw Error(verdict_->kind, verdict_->text);
}

void Control::explain(int rank) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return verdict_.has_value(); });
    if (!verdict_)
      decide(kRankLost, fmt::format("the connection of {} to {} was lost at step {}",
                                    names_[static_cast<size_t>(rank_)],
                                    names_[static_cast<size_t>(rank)], step_.load()));
  }
  check();
  std::abort();  // there was a verdict
}

// Who fails waits until rank 0 knows: a closed line alone would say that it died.
void Control::abort(ErrorKind kind, const std::string& why) {
  std::unique_lock lock(mutex_);
  const bool news = !verdict_;
  taken_ = true;
  if (rank_ == 0) return decide(kind, why);
  if (!news) return;
  tell(Frame::kVerdict, kind, why);
  changed_.wait_for(lock, kPatience, [&] { return verdict_.has_value() || !lines_[0].fd; });
}

bool Control::all_done() const {
  for (const Line& line : lines_)
    if (line.fd && !line.done) return false;
  return true;
}

void Control::finish() {
  {
    std::unique_lock lock(mutex_);
    if (rank_ != 0) tell(Frame::kDone);
    changed_.wait(lock, [&] { return verdict_ || all_done(); });
    if (rank_ == 0 && !verdict_) tell(Frame::kDone);
  }
  check();
}

}  // namespace vitrum
