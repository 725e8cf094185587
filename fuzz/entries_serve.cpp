// What a client sends to a server, through the code that reads it.
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>

#include "fuzz/support.h"
#include "vitrum/serve/multipart.h"
#include "vitrum/serve/oip.h"
#include "vitrum/serve/session.h"

namespace vitrum::fuzz {
namespace {

bool lies_in(std::string_view part, std::string_view whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

// A server with two routes and small limits, without a model.
class Stage {
 public:
  Stage() {
    service_.ready = true;
    const auto echo = [this](serve::ExchangePtr e, const serve::PathParameters&) {
      if (static_cast<int64_t>(e->request.body.size()) > service_.options.limits.body_bytes)
        abort();
      e->respond({.body = e->request.body});
    };
    router_.add({.method = "POST", .pattern = "/echo/{name}", .handle = echo});
    router_.add({.method = "GET", .pattern = "/", .handle = echo});
    gate_ = std::make_unique<serve::Gate>(service_, router_, false);
  }

  // What is answered to a client that sends this and no more.
  std::string play(std::string_view bytes) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) abort();
    serve::Socket socket(io_);
    socket.assign({AF_UNIX, 0}, ends[0]);
    if (send(ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 && !bytes.empty()) abort();
    shutdown(ends[1], SHUT_WR);
    serve::start_session(std::move(socket), {service_, *gate_, hooks_, ids_, under_way_}, nullptr,
                         std::shared_ptr<void>(nullptr, [this](void*) { io_.stop(); }));
    io_.restart();
    const auto work = boost::asio::make_work_guard(io_);  // while a worker has the request
    io_.run();
    std::string answers;
    char buffer[4096];
    for (ssize_t n; (n = recv(ends[1], buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
      answers.append(buffer, static_cast<size_t>(n));
    close(ends[1]);
    // Nothing is left of a connection that ended.
    if (under_way_ != 0 || service_.metrics.body_bytes != 0) abort();
    return answers;
  }

 private:
  static serve::ServeOptions options() {
    serve::ServeOptions o;
    o.listen = "unix:fuzz", o.limits.header_bytes = 2048, o.limits.body_bytes = 4096;
    return o;
  }
  boost::asio::io_context io_{1};
  serve::Service service_{options(), 1};
  serve::Router router_;
  serve::ServerHooks hooks_;
  std::atomic<uint64_t> ids_{0};
  std::atomic<int64_t> under_way_{0};
  std::unique_ptr<serve::Gate> gate_;
};

}  // namespace

void http_session(Input bytes) {
  static Stage stage;
  const std::string answers = stage.play(text_of(bytes));
  if (!answers.empty() && !answers.starts_with("HTTP/1.1 ")) abort();
  // After an answer that ends the connection comes none.
  const size_t end = answers.find("Connection: close");
  if (end != answers.npos &&
      answers.find("\r\nX-Request-Id: ", answers.find("\r\n\r\n", end)) != answers.npos)
    abort();
}

void multipart(Input bytes) {
  const std::string_view text = text_of(bytes);
  const size_t line = text.find('\n');
  const std::string_view body = line == text.npos ? std::string_view{} : text.substr(line + 1);
  judge([&] {
    const auto parts = serve::parse_multipart(body, text.substr(0, line), 8);
    if (parts.size() > 8) abort();
    for (const serve::Part& part : parts)
      if (!lies_in(part.data, body)) abort();
  });
}

void oip(Input bytes) {
  const std::string_view text = text_of(bytes);
  const size_t zero = std::min(text.find('\0'), text.size());
  const std::string body =
      std::string(text.substr(0, zero)) + std::string(text.substr(std::min(zero + 1, text.size())));
  const serve::OipShape shape{1, 2, 2, 3, 5};
  judge([&] {
    const serve::OipRequest request = serve::parse_oip(body, zero, shape, 4);
    if (request.images.empty() || request.images.size() > 4 || request.outputs.empty()) abort();
    for (const std::string_view image : request.images) {
      bool known = lies_in(image, body);
      for (const std::string& own : request.owned) known = known || lies_in(image, own);
      if (!known || (request.decoded && image.size() != 4)) abort();
    }
  });
}

}  // namespace vitrum::fuzz
