#include "vitrum/serve/load_client.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>

#include "vitrum/core/error.h"

namespace vitrum::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
using Clock = std::chrono::steady_clock;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<asio::ip::tcp, Executor>;
using Timer = asio::basic_waitable_timer<Clock, asio::wait_traits<Clock>, Executor>;
using Endpoints = asio::ip::tcp::resolver::results_type;

Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// A request as it goes over the wire; made once, sent many times.
std::string wire_text(const LoadOptions& options, const LoadUrl& url, const std::string* body) {
  const bool ipv6 = url.host.find(':') != std::string::npos;
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\n", body ? "POST" : "GET",
                                 url.path, ipv6 ? "[" + url.host + "]" : url.host, url.port);
  for (const std::string& header : options.headers) {
    const size_t colon = header.find(':');
    if (colon == 0 || colon == std::string::npos ||
        header.find_first_of("\r\n") != std::string::npos)
      fail_usage("--header {}: expected NAME: VALUE", header);
    text += header + "\r\n";
  }
  if (body) text += fmt::format("Content-Length: {}\r\n", body->size());
  return text + "\r\n" + (body ? *body : "");
}

class Load;  // hands out the requests, and keeps the account

// One connection: sends a request, reads its answer, asks for the next one.
class Connection {
 public:
  Connection(Load& load, asio::io_context& io) : load_(load), socket_(io), pause_(io) {}
  void connect();
  void send(const std::string& request, Clock::time_point due, bool counted);
  bool is_busy_with_counted() const { return busy_ && counted_; }

 private:
  void read();
  void on_read(error_code problem, size_t bytes);
  void lose();

  Load& load_;
  Socket socket_;
  Timer pause_;
  beast::flat_buffer buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  Clock::time_point due_;
  bool busy_ = false, writing_ = false, counted_ = false;
};

class Load {
 public:
  Load(const LoadOptions& options, const LoadUrl& url)
      : options_(options), where_(url.host + ":" + url.port), arrivals_(io_) {
    if (options.bodies.empty()) requests_.push_back(wire_text(options, url, nullptr));
    for (const std::string& body : options.bodies)
      requests_.push_back(wire_text(options, url, &body));
    error_code problem;
    asio::ip::tcp::resolver resolver(io_);
    endpoints_ = resolver.resolve(url.host, url.port, problem);
    if (problem) fail_input("{}: {}", where_, problem.message());
    asio::ip::tcp::socket probe(io_);  // one clear line rather than a table of failures
    asio::connect(probe, endpoints_, problem);
    if (problem) fail_input("{}: {}", where_, problem.message());
  }

  LoadResult run() {
    begin_ = Clock::now();
    measured_from_ = begin_ + to_duration(options_.warm_up);
    end_ = measured_from_ + to_duration(options_.seconds);
    for (int64_t i = 0; i < options_.connections; ++i)
      connections_.push_back(std::make_unique<Connection>(*this, io_));
    for (auto& connection : connections_) connection->connect();
    if (options_.rate > 0) await_arrival();
    io_.run_until(end_);
    io_.run_until(end_ + to_duration(options_.patience));
    for (const auto& connection : connections_)
      result_.unanswered += connection->is_busy_with_counted();
    for (; options_.rate > 0 && due_at(sent_) < end_; ++sent_)
      result_.unanswered += due_at(sent_) >= measured_from_;
    result_.seconds = options_.seconds;
    return std::move(result_);
  }

  void on_idle(Connection& connection) {
    if (options_.rate > 0) {
      idle_.push_back(&connection);
      dispatch();
    } else if (const auto now = Clock::now(); now < end_) {
      give(connection, now);
    } else {
      finish();
    }
  }
  void on_answer(int status, Clock::time_point due, bool counted) {
    if (!counted) return;
    ++result_.answered, ++result_.statuses[status];
    if (status / 100 == 2) result_.latency.add(Clock::now() - due);
  }
  void on_loss(bool counted) { result_.unanswered += counted; }
  const Endpoints& endpoints() const { return endpoints_; }
  bool is_over() const { return Clock::now() >= end_; }

 private:
  Clock::time_point due_at(uint64_t i) const {
    return begin_ + to_duration(static_cast<double>(i) / options_.rate);
  }

  void await_arrival() {
    dispatch();
    const auto next = due_at(std::max(sent_, seen_));
    if (next >= end_) return;
    arrivals_.expires_at(next);
    arrivals_.async_wait([this](error_code problem) {
      if (!problem) await_arrival();
    });
  }

  // Gives what is due to those who are idle.
  void dispatch() {
    const auto now = Clock::now();
    while (!idle_.empty() && due_at(sent_) <= now && due_at(sent_) < end_) {
      Connection* connection = idle_.front();  // in turn, so that all of them are used
      idle_.pop_front();
      give(*connection, due_at(sent_));
    }
    for (seen_ = std::max(seen_, sent_); due_at(seen_) <= now;) ++seen_;
    if (now >= end_) finish();
  }

  void give(Connection& connection, Clock::time_point due) {
    const std::string& request = requests_[sent_++ % requests_.size()];
    connection.send(request, due, due >= measured_from_ && due < end_);
  }

  void finish() {
    for (const auto& connection : connections_)
      if (connection->is_busy_with_counted()) return;
    if (options_.rate <= 0 || due_at(sent_) >= end_) io_.stop();
  }

  const LoadOptions& options_;
  std::string where_;
  asio::io_context io_{1};
  Timer arrivals_;
  Endpoints endpoints_;
  std::vector<std::string> requests_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::deque<Connection*> idle_;
  uint64_t sent_ = 0, seen_ = 0;  // requests that were given away; that were due
  Clock::time_point begin_, measured_from_, end_;
  LoadResult result_;
};

void Connection::connect() {
  error_code ignored;
  socket_.close(ignored);
  buffer_.clear();
  socket_.async_connect(load_.endpoints().begin()->endpoint(), [this](error_code problem) {
    if (load_.is_over()) return;
    if (!problem) {
      error_code ignored;
      socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
      return load_.on_idle(*this);
    }
    pause_.expires_after(std::chrono::milliseconds(10));
    pause_.async_wait([this](error_code) { connect(); });
  });
}

void Connection::send(const std::string& request, Clock::time_point due, bool counted) {
  due_ = due, counted_ = counted, busy_ = true;
  parser_.emplace();
  parser_->body_limit(boost::none);
  parser_->eager(true);  // header and body in one go
  writing_ = true;
  asio::async_write(socket_, asio::buffer(request), [this](error_code problem, size_t) {
    writing_ = false;
    if (problem && busy_) lose();
  });
  read();  // a server may refuse a body before it is sent
}

void Connection::read() {
  socket_.async_read_some(buffer_.prepare(size_t{1} << 16),
                          [this](error_code problem, size_t bytes) { on_read(problem, bytes); });
}

void Connection::on_read(error_code problem, size_t bytes) {
  if (!busy_) return;
  buffer_.commit(bytes);
  if (!problem && !parser_->is_done()) {
    buffer_.consume(parser_->put(buffer_.data(), problem));
    if (problem == http::error::need_more) problem = {};
  }
  if (problem == asio::error::eof) problem = {}, parser_->put_eof(problem);
  if (problem) return lose();
  if (!parser_->is_done()) return read();
  busy_ = false;
  load_.on_answer(parser_->get().result_int(), due_, counted_);
  parser_->get().keep_alive() && !writing_ ? load_.on_idle(*this) : connect();
}

void Connection::lose() {
  busy_ = false;
  load_.on_loss(counted_);
  connect();
}

}  // namespace

LoadUrl parse_load_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) fail_usage("--url {}: expected http://HOST:PORT/PATH", url);
  const std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string host = rest.substr(0, slash);
  const size_t colon = host.ends_with(']') ? std::string::npos : host.rfind(':');
  LoadUrl out{host.substr(0, colon), colon == std::string::npos ? "80" : host.substr(colon + 1),
              slash == rest.size() ? "/v1/classify" : rest.substr(slash)};
  if (out.host.starts_with('[') && out.host.ends_with(']'))
    out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.port.empty() || url.find_first_of(" \t\r\n") != std::string::npos)
    fail_usage("--url {}: expected http://HOST:PORT/PATH", url);
  return out;
}

LoadResult run_load(const LoadOptions& options) {
  const LoadUrl url = parse_load_url(options.url);
  return Load(options, url).run();
}

}  // namespace vitrum::serve
