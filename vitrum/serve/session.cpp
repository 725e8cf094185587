#include "vitrum/serve/session.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
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
        idle_(stream_.get_executor()) {}
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
    stream_.async_read_some(buffer_.prepare(4096), then(&Session::on_first_bytes));
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
    expire_in(limits().header_seconds);
    http::async_read_header(stream_, buffer_, *parser_, then(&Session::on_header));
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
    if (parser_->is_done()) return on_body({}, 0);
    expire_in(limits().body_seconds);
    http::async_read(stream_, buffer_, *parser_, then(&Session::on_body));
  }

  void on_body(error_code problem, size_t) {
    if (problem) return refuse_unreadable(problem);
    exchange_->request.body = std::move(parser_->get().body());
    exchange_->arrived = Exchange::Clock::now();
    exchange_->deadline = exchange_->arrived + milliseconds(limits().request_seconds);
    exchange_->send = [self = this->shared_from_this()](Response response) {
      asio::post(self->stream_.get_executor(), [self, r = std::move(response)]() mutable {
        self->guarded_step([&] { self->answer(std::move(r)); });
      });
    };
    watch_for_end();
    const auto route = match_.route;
    auto call = [route, parameters = match_.parameters, exchange = exchange_] {
      guarded(exchange, route->errors, [&] { route->handle(exchange, parameters); });
    };
    // What is only read is answered here: probes and metrics do not stand in line behind photos.
    if (route->method == "GET") return call();
    const double wait = host_.context.workers.seconds_to_wait();
    if (host_.gate.admin || wait <= limits().wait_seconds)
      return host_.context.workers.post(std::move(call), /*usual=*/!host_.gate.admin);
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
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(static_cast<size_t>(limits().header_bytes)),
                            then(&Session::on_watched));
  }

  void on_watched(error_code problem, size_t bytes) {
    watching_ = false;
    idle_.cancel();
    if (!problem) buffer_.commit(bytes);
    if (problem && exchange_) exchange_->gone = true, keep_alive_ = false;
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
    send(std::move(response));
  }

  void answer(Response response) { send(std::move(response)); }

  void send(Response response) {
    answering_ = true, answered_ = false;
    if (host_.context.draining) keep_alive_ = false;
    auto& out = out_.emplace();
    out.result(static_cast<unsigned>(response.status));
    out.reason({reason_of(response.status).data(), reason_of(response.status).size()});
    out.version(11);
    out.keep_alive(keep_alive_);
    out.set(http::field::content_type, response.content_type);
    out.set("X-Content-Type-Options", "nosniff");
    out.set("X-Request-Id", std::to_string(exchange_->id));
    for (const auto& [name, value] : response.headers) out.set(name, value);
    status_ = response.status;
    out.body() = std::move(response.body);
    out.prepare_payload();
    if (head_) out.body().clear();
    expire_in(limits().write_seconds);
    serializer_.emplace(out);
    if (head_)
      http::async_write_header(stream_, *serializer_, then(&Session::on_written));
    else
      http::async_write(stream_, *serializer_, then(&Session::on_written));
  }

  void on_written(error_code problem, size_t) {
    log();
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
    parser_.reset(), room_ = {};  // what was read of the body
    dropped_ = 0;
    drop_more();
  }

  void drop_more() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(65536), then(&Session::on_dropped));
  }

  void on_dropped(error_code problem, size_t bytes) {
    dropped_ += static_cast<int64_t>(bytes);
    if (problem || dropped_ > limits().body_bytes) return close();
    drop_more();
  }

  void finish_answer() {
    answering_ = answered_ = false;
    room_ = {};
    exchange_.reset(), match_ = {};
    if (!keep_alive_) return close();
    await_request();
  }

  void log() {
    if (std::exchange(counted_, false)) --host_.under_way;
    const auto now = Exchange::Clock::now();
    LogEntry entry{.id = exchange_->id,
                   .route = exchange_->route,
                   .model = exchange_->model,
                   .status = status_,
                   .images = exchange_->images};
    entry.queue_ms = 1e-3 * static_cast<double>(exchange_->queue_us);
    entry.decode_ms = 1e-3 * static_cast<double>(exchange_->decode_us);
    entry.model_ms = 1e-3 * static_cast<double>(exchange_->model_us);
    entry.total_ms = std::chrono::duration<double, std::milli>(now - exchange_->arrived).count();
    host_.context.metrics.total.add(1e-3 * entry.total_ms);
    host_.context.metrics.count(entry.route, entry.status);
    if (host_.hooks.request) host_.hooks.request(entry);
  }

  void close() {
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
  std::optional<http::response<http::string_body>> out_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  int status_ = 0;
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
