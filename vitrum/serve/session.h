// One connection: reads requests, hands them to the routes, writes answers. Together with the
// server the only code that sees Boost.
#pragma once
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "vitrum/serve/gate.h"
#include "vitrum/serve/server.h"

namespace vitrum::serve {

struct SessionHost {
  Service& context;
  const Gate& gate;
  const ServerHooks& hooks;
  std::atomic<uint64_t>& next_id;
  std::atomic<int64_t>& under_way;  // requests that are not answered yet
};

using Socket = boost::asio::generic::stream_protocol::socket;

// Lives until the connection ends, and holds `place` until then.
void start_session(Socket socket, SessionHost host, boost::asio::ssl::context* tls,
                   std::shared_ptr<void> place);

}  // namespace vitrum::serve
