// A server on a loopback address, in a thread of the test, and a client that speaks to it by bytes.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/data_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/serve/server.h"

namespace vitrum::serve {

using nlohmann::json;
struct Answer {
  int status = 0;
  std::string head, body;
  json parsed() const { return json::parse(body); }
};

class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET, to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
      throw std::runtime_error("cannot connect");
    const timeval limit{20, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t n = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }
  // One answer, by its Content-Length; status 0 where the connection ends before it.
  Answer receive(bool head_only = false) {
    size_t end;
    while ((end = read_.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return {};
    Answer answer{std::stoi(read_.substr(9, 3)), read_.substr(0, end), {}};
    const size_t at = answer.head.find("Content-Length: ");
    const size_t length =
        at == std::string::npos || head_only ? 0 : std::stoul(answer.head.substr(at + 16));
    read_.erase(0, end + 4);
    while (read_.size() < length)
      if (!more()) return {};
    answer.body = read_.substr(0, length);
    read_.erase(0, length);
    return answer;
  }
  bool closed() { return read_.empty() && !more(); }

 private:
  bool more() {
    char buffer[65536];
    const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
    if (n <= 0) return false;
    read_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  int socket_;
  std::string read_;
};

inline std::string post(const std::string& path, const std::string& body,
                        const std::string& more = "") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         more + "\r\n" + body;
}
inline std::string get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n";
}

inline const char* const kMultipart = "Content-Type: multipart/form-data; boundary=b\r\n";
inline std::string multipart(const std::vector<std::string>& images) {
  std::string body;
  for (const std::string& image : images)
    body +=
        "--b\r\nContent-Disposition: form-data; name=image; filename=x\r\n\r\n" + image + "\r\n";
  return body + "--b--\r\n";
}

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    test::write_tiny_model(dir_ / "tiny", test::tiny_rgb_model());
    options_.listen = "127.0.0.1:0";
    options_.models = {{"tiny", dir_ / "tiny"}};
    options_.device = "cpu", options_.threads = 2;
  }
  ~ServerTest() override { stop(); }

  void start() {
    std::promise<void> ready;
    ServerHooks hooks;
    hooks.listening = [&](const std::string&) { ready.set_value(); };
    hooks.request = logged_;
    server_ = std::make_unique<Server>(options_, std::move(hooks));
    thread_ = std::thread([this] { server_->run(); });
    ready.get_future().wait();
  }
  void stop() {
    if (thread_.joinable()) server_->stop(), thread_.join();
  }
  Answer ask(const std::string& request) {
    Client client(server_->port());
    client.send(request);
    return client.receive();
  }
  static std::string photo(int i = 0) { return encode_png(test::gradient(3, 40 + i, 60)); }
  // What `classify` says, best first.
  std::vector<Prediction> expected(int i = 0) {
    Predictor predictor(dir_ / "tiny", {.device = "cpu", .threads = 1});
    return predictor.classify(test::gradient(3, 40 + i, 60), 7);
  }

  test::TempDir dir_;
  ServeOptions options_;
  std::function<void(const LogEntry&)> logged_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace vitrum::serve
