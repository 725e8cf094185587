// A scripted HTTP server on a loopback address, a connection an answer.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace vitrum::test {

struct Request {
  std::string path;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string header(const std::string& name) const;
};

struct Reply {
  int status = 200;
  std::string body = {};
  std::vector<std::string> headers = {};  // "Name: value"
  int64_t announced = -1;                 // Content-Length; -1: the body's, -2: none
  int64_t cut_after = -1;                 // bytes of the body until the connection breaks off
  double wait = 0;                        // seconds before the body
  size_t piece = 0;                       // bytes of the body at a time; 0: all at once
  double pause = 0;                       // seconds between pieces
};

class HttpServer {
 public:
  using Script = std::function<Reply(const Request&)>;
  explicit HttpServer(Script script, const std::string& host = "127.0.0.1");
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& url() const { return url_; }  // "http://127.0.0.1:45678"
  std::vector<Request> requests() const;
  size_t count(const std::string& path) const;

 private:
  void serve();
  void answer(int connection);

  Script script_;
  int listener_ = -1;
  std::string url_;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

}  // namespace vitrum::test
