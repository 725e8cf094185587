#include "vitrum/serve/session.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "vitrum/serve/framing.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;
using Plain = beast::basic_stream<asio::generic::stream_protocol, asio::any_io_executor>;
using Tls = beast::ssl_stream<Plain>;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

template <class Stream>
class Session : public std::enable_shared_from_this<Session<Stream>> {
 public:
  template <class... Args>
  Session(SessionHost host, std::shared_ptr<void> place, Args&&... stream)
      : host_(host),
        place_(std::move(place)),
        stream_(std::forward<Args>(stream)...),
        idle_(stream_.get_executor()),
        buffer_(static_cast<size_t>(limits().header_bytes) + kReadBytes) {}
  ~Session() {
    if (counted_) --host_.under_way;
  }

  void start() {
    asio::dispatch(stream_.get_executor(), [self = this->shared_from_this()] {
      if constexpr (std::is_same_v<Stream, Tls>)
        self->shake_hands();
      else
        self->await_request();
    });
  }

 private:
  using Parser = http::request_parser<http::string_body>;
  // Bodies come through the buffer in pieces of about this size. There may be thousands of
  // connections, so it is small, and what an idle one keeps is smaller.
  static constexpr size_t kReadBytes = 8192, kIdleBytes = 4096;

  const Limits& limits() const { return host_.context.options.limits; }
  void expire_in(double seconds) {
    beast::get_lowest_layer(stream_).expires_after(milliseconds(seconds));
  }
  // What throws here (memory that is not there) costs this connection and no other.
  template <class Step>
  void guarded_step(const Step& step) {
    try {
      step();
    } catch (const std::exception&) {
      close();
      exchange_.reset();  // its `send` would keep this session for ever
    }
  }
  template <class Member>
  auto then(Member member) {
    return [self = this->shared_from_this(), member](auto&&... args) {
      self->guarded_step([&] { (self.get()->*member)(std::forward<decltype(args)>(args)...); });
    };
  }

  void shake_hands() {
    if constexpr (std::is_same_v<Stream, Tls>) {
      expire_in(limits().header_seconds);
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](error_code problem) {
                                if (!problem) self->await_request();
                              });
    }
  }

  // Between requests a connection may be idle for longer than a header may take; one that never
  // asked for anything may not.
  void await_request() {
    if (buffer_.size() > 0) return read_header();
    expire_in(used_ ? limits().idle_seconds : limits().header_seconds);
    stream_.async_read_some(buffer_.prepare(kIdleBytes), then(&Session::on_first_bytes));
  }

  void on_first_bytes(error_code problem, size_t bytes) {
    if (problem) return close();
    buffer_.commit(bytes);
    read_header();
  }

  void read_header() {
    if (!std::exchange(counted_, true)) ++host_.under_way;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(limits().header_bytes));
    parser_->body_limit(static_cast<uint64_t>(limits().body_bytes));
    on_chunk_ = [](uint64_t, beast::string_view extensions, error_code& problem) {
      if (!extensions.empty()) problem = http::error::bad_chunk_extension;
    };
    parser_->on_chunk_header(on_chunk_);
    const auto done = [&] { return parser_->is_header_done(); };
    if (const error_code problem = parse_what_is_there(done); problem || done())
      return on_header(problem, 0);
    expire_in(limits().header_seconds);
    http::async_read_header(stream_, buffer_, *parser_, then(&Session::on_header));
  }

  // Most requests come in one piece; to go through the event loop for each part would double what
  // this thread does for them.
  template <class Done>
  error_code parse_what_is_there(const Done& done) {
    error_code problem;
    while (!problem && buffer_.size() > 0 && !done())
      buffer_.consume(parser_->put(buffer_.data(), problem));
    return problem == http::error::need_more ? error_code() : problem;
  }

  void on_header(error_code problem, size_t) {
    if (problem) return refuse_unreadable(problem);
    exchange_ = std::make_shared<Exchange>();
    used_ = true;
    exchange_->id = ++host_.next_id;
    const auto& message = parser_->get();
    head_ = message.method() == http::verb::head;
    keep_alive_ = message.keep_alive() && !host_.context.draining;
    if (message.version() != 11 && message.version() != 10)
      return refuse(error_response(505, "HTTP/1.1 is spoken here"));
    if (const auto why = framing_problem()) return refuse(error_response(400, *why));
    const auto target = parse_target(view(message.target()));
    if (!target) return refuse(error_response(400, "the path of the request is not well formed"));
    Request& request = exchange_->request;
    request.method = message.method_string();
    request.path = target->path, request.query = target->query;
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      request.headers.emplace(std::move(name), std::string(field.value()));
    }
    Gate::Verdict verdict = host_.gate.judge(request);
    match_ = std::move(verdict.match);
    exchange_->route = match_.route ? match_.route->method + " " + match_.route->pattern : "none";
    if (verdict.refusal) return refuse(std::move(*verdict.refusal));
    take_body();
  }

  std::optional<std::string_view> framing_problem() const {
    std::vector<HeaderField> fields;
    for (const auto& field : parser_->get())
      fields.emplace_back(view(field.name_string()), view(field.value()));
    return refuse_framing(parser_->get().version() % 10, fields);
  }

  void take_body() {
    const auto length = parser_->content_length();
    const ErrorForm form = match_.route->errors;
    if (length && *length > static_cast<uint64_t>(limits().body_bytes))
      return refuse(error_response(413, "the body is larger than this server takes", form));
    const int64_t bytes = length               ? static_cast<int64_t>(*length)
                          : parser_->chunked() ? limits().body_bytes
                                               : 0;
    auto room = Reservation::take(host_.context.metrics.body_bytes, bytes, limits().in_flight);
    if (!room) {
      Response busy = error_response(429, "too much is being sent at once; try again later", form);
      busy.headers.emplace_back("Retry-After", "1");
      return refuse(std::move(busy));
    }
    room_ = std::move(*room);
    const std::string_view expect = exchange_->request.header("expect");
    if (expect.empty()) return read_body();
    if (!beast::iequals({expect.data(), expect.size()}, "100-continue"))
      return refuse(error_response(417, "the only expectation met is 100-continue", form));
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(kContinue),
                      [self = this->shared_from_this()](error_code problem, size_t) {
                        if (!problem) self->guarded_step([&] { self->read_body(); });
                      });
  }

  void read_body() {
    parser_->eager(true);
    const auto done = [&] { return parser_->is_done(); };
    if (const error_code problem = parse_what_is_there(done); problem || done())
      return on_body(problem, 0);
    expire_in(limits().body_seconds);
    http::async_read(stream_, buffer_, *parser_, then(&Session::on_body));
  }

  void on_body(error_code problem, size_t) {
    if (problem) return refuse_unreadable(problem);
    exchange_->request.body = std::move(parser_->get().body());
    exchange_->arrived = Exchange::Clock::now();
    exchange_->deadline = exchange_->arrived + milliseconds(limits().request_seconds);
    // Whoever has the answer writes it, as far as the socket takes it: to wake the thread of the
    // sockets first would cost as much as all else that is done for a small answer.
    exchange_->send = [self = this->shared_from_this(), &exchange = *exchange_, head = head_,
                       keep_alive = keep_alive_](Response response) {
      Outgoing out = self->outgoing(std::move(response), exchange.id, head, keep_alive);
      self->count(exchange, out.status);
      self->write_now(out);
      asio::post(self->stream_.get_executor(), [self, o = std::move(out)]() mutable {
        self->guarded_step([&] { self->send(std::move(o)); });
      });
    };
    watch_for_end();
    const auto route = match_.route;
    auto call = [route, parameters = match_.parameters, exchange = exchange_] {
      guarded(exchange, route->errors, [&] { route->handle(exchange, parameters); });
    };
    // What is only read is answered here: probes and metrics do not stand in line behind photos.
    if (route->method == "GET") return call();
    const double wait = host_.context.backlog.seconds_to_wait();
    if (host_.gate.admin || wait <= limits().wait_seconds) {
      if (!host_.gate.admin) exchange_->place = host_.context.backlog.enter();
      return host_.context.workers.post(std::move(call));
    }
    Response busy =
        error_response(429, "too many requests are waiting; try again later", route->errors);
    busy.headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(wait) + 1));
    exchange_->respond(std::move(busy));
  }

  // While the request is worked on: what arrives is the beginning of the next one, or the client
  // has left, and its work can be dropped.
  void watch_for_end() {
    beast::get_lowest_layer(stream_).expires_never();
    if (buffer_.size() > 0) return;  // the next request is there already, so the client is, too
    if (buffer_.capacity() > kIdleBytes) buffer_.shrink_to_fit();
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(kIdleBytes), then(&Session::on_watched));
  }

  void on_watched(error_code problem, size_t bytes) {
    watching_ = false;
    idle_.cancel();
    if (!problem) buffer_.commit(bytes);
    if (problem) keep_alive_ = false;
    if (problem && exchange_) exchange_->gone = true;
    if (answering_ && answered_) finish_answer();
  }

  // Bytes that are no request: some are answered, all end the connection.
  void refuse_unreadable(error_code problem) {
    if (problem == http::error::end_of_stream || problem == beast::error::timeout ||
        problem == asio::error::eof || problem == asio::error::operation_aborted ||
        problem == asio::error::connection_reset)
      return close();
    if (!exchange_) {
      exchange_ = std::make_shared<Exchange>();
      exchange_->id = ++host_.next_id;
      exchange_->route = "none";
    }
    const int status = problem == http::error::header_limit ? 431
                       : problem == http::error::body_limit ? 413
                                                            : 400;
    refuse(error_response(status, status == 431   ? "the header is larger than this server takes"
                                  : status == 413 ? "the body is larger than this server takes"
                                                  : "the request is not well formed HTTP"));
  }

  // The body was not read, so nothing behind it can be trusted to be a request.
  void refuse(Response response) {
    keep_alive_ = keep_alive_ && parser_ && parser_->is_done();
    if (response.status == 400) keep_alive_ = false;
    count(*exchange_, response.status);
    send(outgoing(std::move(response), exchange_->id, head_, keep_alive_));
  }

  // An answer on its way, as bytes.
  struct Outgoing {
    std::string head, body;
    int status = 0;
    bool keep_alive = false;
    size_t written = 0;  // of both
  };

  // From any thread.
  Outgoing outgoing(Response response, uint64_t id, bool head_only, bool keep_alive) const {
    Outgoing out{.body = std::move(response.body), .status = response.status};
    out.keep_alive = keep_alive && !host_.context.draining;
    out.head = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\n"
        "X-Request-Id: {}\r\n",
        response.status, reason_of(response.status), response.content_type, id);
    out.head += fmt::format("Content-Length: {}\r\n", out.body.size());
    for (const auto& [name, value] : response.headers)
      out.head += fmt::format("{}: {}\r\n", name, value);
    out.head += out.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
    if (head_only) out.body.clear();
    return out;
  }

  // From any thread, before send().
  void write_now(Outgoing& out) {
    if constexpr (std::is_same_v<Stream, Plain>) {
      const std::lock_guard lock(closing_);  // else the number could be another connection's by now
      if (closed_) return;
      const std::array<iovec, 2> parts = {iovec{out.head.data(), out.head.size()},
                                          iovec{out.body.data(), out.body.size()}};
      msghdr message = {};
      message.msg_iov = const_cast<iovec*>(parts.data()), message.msg_iovlen = parts.size();
      const ssize_t sent =
          sendmsg(stream_.socket().native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) out.written = static_cast<size_t>(sent);
    }
  }

  void send(Outgoing out) {
    answering_ = true, answered_ = false;
    keep_alive_ = keep_alive_ && out.keep_alive;
    out_ = std::move(out);
    const size_t of_head = std::min(out_.written, out_.head.size());
    if (out_.written == out_.head.size() + out_.body.size()) return on_written({}, 0);
    expire_in(limits().write_seconds);
    const std::array<asio::const_buffer, 2> rest = {
        asio::buffer(out_.head) + of_head, asio::buffer(out_.body) + (out_.written - of_head)};
    asio::async_write(stream_, rest, then(&Session::on_written));
  }

  void on_written(error_code problem, size_t) {
    log();
    // An idle connection keeps no body, no share of what all bodies may have, and no answer.
    room_ = {};
    exchange_.reset(), out_ = {};
    if (problem) keep_alive_ = false;
    if (!problem && !keep_alive_ && parser_ && !parser_->is_done()) return linger();
    answered_ = true;
    if (!watching_) return finish_answer();
    if (!keep_alive_) return close();  // ends the read that watches; its handler goes on
    // That read has no limit of its own, so the connection would be idle for ever.
    idle_.expires_after(milliseconds(limits().idle_seconds));
    idle_.async_wait([self = this->shared_from_this()](error_code problem) {
      if (!problem) self->close();
    });
  }

  // A client that is still sending would lose the answer if the connection were closed on it: what
  // comes is read and dropped, for a moment and no more than a request may have.
  void linger() {
    error_code ignored;
    beast::get_lowest_layer(stream_).socket().shutdown(asio::socket_base::shutdown_send, ignored);
    expire_in(std::min(2.0, limits().body_seconds));
    room_ = {}, parser_.reset();  // what was read of the body
    dropped_ = 0;
    drop_more();
  }

  void drop_more() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kReadBytes), then(&Session::on_dropped));
  }

  void on_dropped(error_code problem, size_t bytes) {
    dropped_ += static_cast<int64_t>(bytes);
    if (problem || dropped_ > limits().body_bytes) return close();
    drop_more();
  }

  void finish_answer() {
    answering_ = answered_ = false;
    match_ = {};
    if (!keep_alive_) return close();
    await_request();
  }

  // Before the answer is written, so that who has it finds it counted. From any thread.
  void count(Exchange& exchange, int status) {
    const auto took = Exchange::Clock::now() - exchange.arrived;
    exchange.total_ms = std::chrono::duration<double, std::milli>(took).count();
    host_.context.metrics.total.add(1e-3 * exchange.total_ms);
    host_.context.metrics.count(exchange.route, status);
  }

  void log() {
    if (std::exchange(counted_, false)) --host_.under_way;
    if (!host_.hooks.request) return;
    LogEntry entry{.id = exchange_->id,
                   .route = exchange_->route,
                   .model = exchange_->model,
                   .status = out_.status,
                   .images = exchange_->images};
    entry.queue_ms = 1e-3 * static_cast<double>(exchange_->queue_us);
    entry.decode_ms = 1e-3 * static_cast<double>(exchange_->decode_us);
    entry.model_ms = 1e-3 * static_cast<double>(exchange_->model_us);
    entry.total_ms = exchange_->total_ms;
    host_.hooks.request(entry);
  }

  void close() {
    const std::lock_guard lock(closing_);
    closed_ = true;
    error_code ignored;
    auto& socket = beast::get_lowest_layer(stream_).socket();
    socket.shutdown(asio::socket_base::shutdown_send, ignored);
    beast::get_lowest_layer(stream_).close();
  }

  static std::string_view view(beast::string_view text) { return {text.data(), text.size()}; }

  SessionHost host_;
  std::shared_ptr<void> place_;  // among the connections
  Stream stream_;
  asio::steady_timer idle_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::function<void(uint64_t, beast::string_view, error_code&)> on_chunk_;
  ExchangePtr exchange_;
  Router::Match match_;
  Reservation room_;
  Outgoing out_;
  std::mutex closing_;   // against a write from another thread
  bool closed_ = false;  // under it
  int64_t dropped_ = 0;  // bytes read after an answer that refused them
  bool used_ = false, keep_alive_ = true, head_ = false, counted_ = false;
  bool watching_ = false, answering_ = false, answered_ = false;
};

}  // namespace

void start_session(Socket socket, SessionHost host, asio::ssl::context* tls,
                   std::shared_ptr<void> place) {
  if (tls)
    std::make_shared<Session<Tls>>(host, std::move(place), std::move(socket), *tls)->start();
  else
    std::make_shared<Session<Plain>>(host, std::move(place), std::move(socket))->start();
}

}  // namespace vitrum::serve
