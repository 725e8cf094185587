#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <stdexcept>

namespace vitrum::test {
namespace {

Request parse(const std::string& head) {
  Request request;
  std::istringstream lines(head);
  std::string line;
  std::getline(lines, line);
  std::istringstream(line) >> line >> request.path;
  while (std::getline(lines, line) && line.size() > 1) {
    const size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers[name] = line.substr(colon + 2, line.size() - colon - 3);
  }
  return request;
}

bool send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;  // the client has gone
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

std::string Request::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

HttpServer::HttpServer(Script script, const std::string& host) : script_(std::move(script)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 16) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("cannot listen on " + host);
  url_ = fmt::format("http://{}:{}", host, ntohs(address.sin_port));
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  shutdown(listener_, SHUT_RDWR);  // wakes accept()
  thread_.join();
  close(listener_);
}

std::vector<Request> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

size_t HttpServer::count(const std::string& path) const {
  const std::vector<Request> all = requests();
  return static_cast<size_t>(
      std::ranges::count_if(all, [&](const Request& r) { return r.path == path; }));
}

void HttpServer::serve() {
  for (;;) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    answer(connection);
    close(connection);
  }
}

void HttpServer::answer(int connection) {
  std::string head;
  for (char buffer[4096]; head.find("\r\n\r\n") == head.npos;) {
    const ssize_t n = recv(connection, buffer, sizeof(buffer), 0);
    if (n <= 0) return;
    head.append(buffer, static_cast<size_t>(n));
  }
  const Request request = parse(head);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  const Reply reply = script_(request);
  std::string text = fmt::format("HTTP/1.1 {} Scripted\r\nConnection: close\r\n", reply.status);
  for (const std::string& header : reply.headers) text += header + "\r\n";
  if (reply.announced != -2)
    text += fmt::format("Content-Length: {}\r\n", reply.announced < 0
                                                      ? static_cast<int64_t>(reply.body.size())
                                                      : reply.announced);
  send_all(connection, text + "\r\n");
  std::this_thread::sleep_for(std::chrono::duration<double>(reply.wait));
  std::string_view body =
      std::string_view(reply.body).substr(0, static_cast<size_t>(reply.cut_after));
  for (; reply.piece > 0 && body.size() > reply.piece; body.remove_prefix(reply.piece)) {
    if (!send_all(connection, body.substr(0, reply.piece))) return;
    std::this_thread::sleep_for(std::chrono::duration<double>(reply.pause));
  }
  send_all(connection, body);
}

}  // namespace vitrum::test
