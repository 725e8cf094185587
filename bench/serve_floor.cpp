// The least that a server with a thread of its own for the work can take: requests are read by one
// thread, handed to another, and answered by that one, with nothing done in between. It speaks just
// enough HTTP for a load client: whatever ends a request of a known size is answered by the same
// few bytes.
//   bench_serve_floor PORT REQUEST_BYTES [ANSWER_BYTES]
// with REQUEST_BYTES the size of a whole request, header and body: `vitrum bench --mode serve` and
// wrk send requests of one size.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

namespace {

std::string answer_of(size_t body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body) + "\r\n\r\n" + std::string(body, ' ');
}

// The thread hop: descriptors of connections that wait for an answer.
class Hop {
 public:
  void push(int fd) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(fd);
    }
    ready_.notify_one();
  }
  int pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return !waiting_.empty(); });
    const int fd = waiting_.front();
    waiting_.pop_front();
    return fd;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<int> waiting_;
};

int listen_on(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at = {};
  at.sin_family = AF_INET, at.sin_port = htons(port), at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 || listen(fd, 1024) != 0) {
    std::perror("bind");
    std::exit(1);
  }
  return fd;
}

void watch(int epoll, int fd) {
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PORT REQUEST_BYTES [ANSWER_BYTES]\n", argv[0]);
    return 2;
  }
  const auto request = static_cast<size_t>(std::atol(argv[2]));
  const std::string answer = answer_of(argc > 3 ? static_cast<size_t>(std::atol(argv[3])) : 100);
  const int listener = listen_on(static_cast<uint16_t>(std::atoi(argv[1])));
  const int epoll = epoll_create1(0);
  watch(epoll, listener);
  Hop hop;
  std::thread([&] {
    for (;;)
      if (send(hop.pop(), answer.data(), answer.size(), MSG_NOSIGNAL) < 0) continue;
  }).detach();
  std::unordered_map<int, size_t> read;  // bytes of the request that a connection is sending
  char buffer[65536];
  for (epoll_event events[64];;) {
    const int count = epoll_wait(epoll, events, 64, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int client = accept(listener, nullptr, nullptr), yes = 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        watch(epoll, client);
        read[client] = 0;
        continue;
      }
      const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
      if (n <= 0) {
        close(fd);
        continue;
      }
      if ((read[fd] += static_cast<size_t>(n)) < request) continue;
      read[fd] -= request;
      hop.push(fd);
    }
  }
}
