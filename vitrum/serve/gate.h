// What every request must pass before its body is read, and how much of everything there may be at
// once.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/serve/context.h"
#include "vitrum/serve/router.h"

namespace vitrum::serve {

// Keys that clients may show, one a line of a file; blank lines and lines with # are skipped.
class ApiKeys {
 public:
  void load(const std::string& path);  // throws; the old ones stay then
  bool empty() const;
  // Takes as long whatever is wrong.
  bool allows(std::string_view authorization) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> digests_;
};

// Names under which clients may call the server. A page of another name that resolves to this
// address (DNS rebinding) is refused.
class AllowedHosts {
 public:
  AllowedHosts(const std::string& listen, const std::vector<std::string>& names);
  bool allows(std::string_view host) const;
  bool is_own_origin(std::string_view origin, std::string_view host) const;

 private:
  bool any_ = false;
  std::vector<std::string> names_;
};

struct Gate {
  Gate(Service& context, const Router& router, bool admin);

  // The headers of a request, before its body: the route to take, or the answer that refuses it.
  struct Verdict {
    Router::Match match;
    std::optional<Response> refusal;
  };
  Verdict judge(const Request& headers) const;

  Service& context;
  const Router& router;
  bool admin;  // the socket itself is the permission
  AllowedHosts hosts;
  ApiKeys keys;
};

// A share of a limited number of bytes, given back when it goes out of scope.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    release();
    total_ = std::exchange(other.total_, nullptr), bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~Reservation() { release(); }
  // Nothing where `most` would be passed.
  static std::optional<Reservation> take(std::atomic<int64_t>& total, int64_t bytes, int64_t most);

 private:
  void release() {
    if (total_) *total_ -= bytes_;
    total_ = nullptr;
  }
  std::atomic<int64_t>* total_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace vitrum::serve
