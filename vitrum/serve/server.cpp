#include "vitrum/serve/server.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/serve/gate.h"
#include "vitrum/serve/routes.h"
#include "vitrum/serve/session.h"

namespace vitrum::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using local = asio::local::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

asio::generic::stream_protocol::endpoint parse_address(const std::string& text) {
  if (text.starts_with("unix:")) {
    constexpr size_t kMostBytes = sizeof(sockaddr_un::sun_path) - 1;
    if (text.size() - 5 > kMostBytes)
      fail_usage("{}: the path of a socket has at most {} bytes", shown(text), kMostBytes);
    return local::endpoint(text.substr(5));
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos)
    fail_usage("--listen {}: expected ADDRESS:PORT or unix:PATH", text);
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  const std::string digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  error_code problem;
  const auto address = asio::ip::make_address(host, problem);
  if (problem || bad != std::errc() || end != digits.data() + digits.size())
    fail_usage("--listen {}: expected ADDRESS:PORT, such as 127.0.0.1:8080, or unix:PATH", text);
  return tcp::endpoint(address, port);
}

// A socket file that a killed server left is in the way; one that answers is another server's.
void clear_stale(const std::string& path, asio::io_context& io) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return;
  local::socket probe(io);
  error_code problem;
  probe.connect(local::endpoint(path), problem);
  if (!problem) fail_input("{}: another server listens there", path);
  // Anything else is no sign of a dead server: a socket of another kind, one of another user's.
  if (problem == asio::error::connection_refused) unlink(path.c_str());
}

// How many connections there are, all in all and from each address.
class Places {
 public:
  Places(Metrics& metrics, const Limits& limits) : metrics_(metrics), limits_(limits) {}

  // One of them, until it is let go; null where there is none. Clients of a file have no address.
  std::shared_ptr<void> take(const std::string& address) {
    const std::lock_guard lock(mutex_);
    if (metrics_.connections >= limits_.connections ||
        (!address.empty() && by_address_[address] >= limits_.per_address)) {
      ++metrics_.refused_connections;
      return nullptr;
    }
    ++by_address_[address], ++metrics_.connections;
    return {this, [address](Places* places) { places->give_back(address); }};
  }

 private:
  void give_back(const std::string& address) {
    const std::lock_guard lock(mutex_);
    --metrics_.connections;
    if (--by_address_[address] == 0) by_address_.erase(address);
  }

  Metrics& metrics_;
  const Limits& limits_;
  std::mutex mutex_;
  std::map<std::string, int64_t> by_address_;
};

class Listener {
 public:
  Listener(asio::io_context& io, const std::string& address, SessionHost host, Places& places,
           asio::ssl::context* tls)
      : io_(io), acceptor_(io), pause_(io), host_(host), places_(places), tls_(tls) {
    const auto endpoint = parse_address(address);
    if (address.starts_with("unix:"))
      socket_file_ = address.substr(5), clear_stale(socket_file_, io);
    try {
      acceptor_.open(endpoint.protocol());
      if (socket_file_.empty()) acceptor_.set_option(asio::socket_base::reuse_address(true));
      const mode_t before = umask(0077);  // a Unix socket is the owner's alone
      error_code problem;
      acceptor_.bind(endpoint, problem);
      umask(before);
      if (problem) throw boost::system::system_error(problem);
      acceptor_.listen(1024);
    } catch (const boost::system::system_error& e) {
      fail_input("cannot listen on {}: {}", address, e.code().message());
    }
  }
  ~Listener() {
    if (!socket_file_.empty()) unlink(socket_file_.c_str());
  }

  int port() const {
    if (!socket_file_.empty()) return 0;
    const auto endpoint = acceptor_.local_endpoint();
    const auto* in = reinterpret_cast<const sockaddr_in*>(endpoint.data());
    return ntohs(in->sin_port);  // at the same place in IPv6's
  }
  void start() { accept(); }
  // Clients whom the kernel connected already are served, too.
  void stop() {
    error_code problem, ignored;
    acceptor_.non_blocking(true, ignored);
    for (;;) {
      asio::generic::stream_protocol::endpoint peer;
      Socket socket(asio::make_strand(io_));
      acceptor_.accept(socket, peer, problem);
      if (problem) break;
      admit(std::move(socket), peer);
    }
    acceptor_.close(ignored);
    pause_.cancel();
  }

 private:
  void accept() {
    acceptor_.async_accept(asio::make_strand(io_), peer_,
                           [this](error_code problem, Socket socket) {
                             try {
                               // Accepted is accepted, also if the listener was closed since.
                               if (!problem) admit(std::move(socket), peer_);
                             } catch (const std::exception&) {  // no memory for one more
                               problem = boost::asio::error::no_memory;
                             }
                             if (!acceptor_.is_open()) return;
                             if (problem) return wait_and_accept();
                             accept();
                           });
  }

  // Out of descriptors, most likely: those of others come back.
  void wait_and_accept() {
    pause_.expires_after(std::chrono::milliseconds(50));
    pause_.async_wait([this](error_code stopped) {
      if (!stopped) accept();
    });
  }

  void admit(Socket socket, const asio::generic::stream_protocol::endpoint& from) {
    std::shared_ptr<void> place = places_.take(address_of(from));
    if (!place) return;  // the socket closes
    if (socket_file_.empty()) {
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
    }
    start_session(std::move(socket), host_, tls_, std::move(place));
  }

  std::string address_of(const asio::generic::stream_protocol::endpoint& from) const {
    if (!socket_file_.empty()) return {};
    tcp::endpoint peer;
    std::memcpy(peer.data(), from.data(), std::min(peer.capacity(), from.size()));
    return peer.address().to_string();
  }

  asio::io_context& io_;
  Acceptor acceptor_;
  asio::steady_timer pause_;
  asio::generic::stream_protocol::endpoint peer_;
  SessionHost host_;
  Places& places_;
  asio::ssl::context* tls_;
  std::string socket_file_;
};

std::unique_ptr<asio::ssl::context> make_tls(const ServeOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty())
    fail_usage("--tls-cert and --tls-key are given together");
  if (options.tls_cert.empty()) return nullptr;
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                   asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1);
  constexpr size_t kMostBytes = 1 << 20;
  error_code problem;
  tls->use_certificate_chain(asio::buffer(read_file(options.tls_cert, kMostBytes)), problem);
  if (problem) fail_input("{}: {}", options.tls_cert, problem.message());
  tls->use_private_key(asio::buffer(read_file(options.tls_key, kMostBytes)),
                       asio::ssl::context::pem, problem);
  if (problem) fail_input("{}: {}", options.tls_key, problem.message());
  return tls;
}

}  // namespace

struct Server::State {
  State(const ServeOptions& options, ServerHooks h)
      : hooks(std::move(h)), tls(make_tls(options)), context(options), io(options.io_threads) {
    add_public_routes(router, context);
    add_admin_routes(admin_router, context);
    gate = std::make_unique<Gate>(context, router, false);
    context.repository.on_load = [this](ServedModel& model) {
      model.engine().on_batch = [this](int64_t images, double seconds) {
        context.metrics.batch.add(static_cast<double>(images));
        context.metrics.model.add(seconds);
      };
    };
  }
  ~State() { context.finish(); }  // workers answer through sockets

  void listen() {
    const auto host = [&](const Gate& g) {
      return SessionHost{context, g, hooks, next_id, under_way};
    };
    listener =
        std::make_unique<Listener>(io, context.options.listen, host(*gate), places, tls.get());
    if (!context.options.admin.empty()) {
      if (!context.options.admin.starts_with("unix:"))
        fail_usage("--admin {}: expected unix:PATH", context.options.admin);
      admin_gate = std::make_unique<Gate>(context, admin_router, true);
      admin =
          std::make_unique<Listener>(io, context.options.admin, host(*admin_gate), places, nullptr);
    }
  }

  // Sessions guard themselves; what is thrown beside them is told, and no reason to stop.
  void run_io() {
    for (;;) try {
        io.run();
        return;
      } catch (const std::exception& e) {
        tell(e.what());
      }
  }

  void await_signal() {
    signals.async_wait([this](error_code problem, int number) {
      if (problem) return;
      if (number == SIGHUP) {
        context.workers.post([this] { reload(); });
        await_signal();
      } else {
        drain();
      }
    });
  }

  void tell(const std::string& text) const {
    if (hooks.problem) hooks.problem(text);
  }

  void reload() {
    try {
      std::string key_file = context.options.key_file;
      if (hooks.reread) {
        const ServeOptions fresh = hooks.reread();
        context.repository.configure(fresh.models);
        key_file = fresh.key_file;
      }
      if (!key_file.empty()) gate->keys.load(key_file);
      for (const std::string& problem : context.repository.reload()) tell(problem);
    } catch (const std::exception& e) {
      tell(e.what());
    }
  }

  // Not ready from now on, so that balancers look elsewhere; after a while no new connections; the
  // end when what was begun is answered.
  void drain() {
    if (context.draining.exchange(true)) return io.stop();  // asked twice: now
    await_signal();
    const auto delay =
        std::chrono::milliseconds(static_cast<int64_t>(1000 * context.options.drain_delay));
    drain_timer.expires_after(delay);
    drain_timer.async_wait([this](error_code) {
      listener->stop();
      if (admin) admin->stop();
      quiet_since = Exchange::Clock::now();
      look_again();
    });
  }

  // Connections that are idle get a moment to send a request that is on its way already.
  void wait_for_end() {
    const auto now = Exchange::Clock::now();
    if (under_way > 0) quiet_since = now;
    if (context.metrics.connections == 0 || now - quiet_since > std::chrono::milliseconds(500))
      return io.stop();
    look_again();
  }
  // Not at once: a connection may have been accepted and not be counted yet.
  void look_again() {
    drain_timer.expires_after(std::chrono::milliseconds(10));
    drain_timer.async_wait([this](error_code) { wait_for_end(); });
  }

  ServerHooks hooks;
  std::unique_ptr<asio::ssl::context> tls;
  Router router, admin_router;
  std::atomic<uint64_t> next_id{0};
  std::atomic<int64_t> under_way{0};
  Exchange::Clock::time_point quiet_since;
  Context context;
  std::unique_ptr<Gate> gate, admin_gate;
  Places places{context.metrics, context.options.limits};
  asio::io_context io;  // its end is that of the sessions that are left, which use all of the above
  asio::steady_timer drain_timer{io};
  asio::signal_set signals{io};
  std::unique_ptr<Listener> listener, admin;
  std::atomic<int> port{0};
};

Server::Server(const ServeOptions& options, ServerHooks hooks)
    : state_(std::make_unique<State>(options, std::move(hooks))) {}
Server::~Server() = default;

int Server::port() const { return state_->port; }
Context& Server::context() { return state_->context; }
void Server::stop() {
  asio::post(state_->io, [this] { state_->drain(); });
}

void Server::run() {
  State& s = *state_;
  s.signals.add(SIGTERM), s.signals.add(SIGINT), s.signals.add(SIGHUP);
  s.await_signal();
  s.listen();
  s.port = s.listener->port();
  s.listener->start();
  if (s.admin) s.admin->start();
  // The socket answers "not ready" while models are loaded, which a worker does.
  std::exception_ptr failed;
  s.context.workers.post([&] {
    try {
      s.context.repository.load_all();
      s.context.ready = true;
      if (s.hooks.listening) s.hooks.listening(s.context.options.listen);
    } catch (...) {
      failed = std::current_exception();
      s.io.stop();
    }
  });
  std::vector<std::thread> others;
  for (int i = 1; i < s.context.options.io_threads; ++i) others.emplace_back([&] { s.run_io(); });
  s.run_io();
  for (std::thread& thread : others) thread.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace vitrum::serve
