#include "vitrum/serve/gate.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"

namespace vitrum::serve {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Without the port: "localhost" of "localhost:8080", "::1" of "[::1]:8080".
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(1, host.find(']') - 1));
  return lower(host.substr(0, host.rfind(':')));
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0u : 1u;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

}  // namespace

void ApiKeys::load(const std::string& path) {
  constexpr size_t kMostBytes = 1 << 20;
  const std::string text = read_file(path, kMostBytes);
  std::vector<std::string> digests;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') digests.push_back(sha256(line));
  }
  if (digests.empty()) fail_input("{}: there is no key in it; write one a line", path);
  const std::lock_guard lock(mutex_);
  digests_ = std::move(digests);
}

bool ApiKeys::empty() const {
  const std::lock_guard lock(mutex_);
  return digests_.empty();
}

bool ApiKeys::allows(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (lower(authorization.substr(0, kScheme.size())) != kScheme) return false;
  // Digests are compared, so that neither a key's length nor its beginning can be told by the time.
  const std::string shown = sha256(authorization.substr(kScheme.size()));
  bool found = false;
  const std::lock_guard lock(mutex_);
  for (const std::string& digest : digests_) found |= equal_in_constant_time(shown, digest);
  return found;
}

AllowedHosts::AllowedHosts(const std::string& listen, const std::vector<std::string>& names) {
  if (listen.starts_with("unix:")) {
    any_ = true;  // no browser gets there
    return;
  }
  names_ = {"localhost", "127.0.0.1", "::1", host_name(listen)};
  for (const std::string& name : names) {
    if (name == "*") any_ = true;
    names_.push_back(lower(name));
  }
}

bool AllowedHosts::allows(std::string_view host) const {
  return any_ || std::find(names_.begin(), names_.end(), host_name(host)) != names_.end();
}

bool AllowedHosts::is_own_origin(std::string_view origin, std::string_view host) const {
  for (const std::string_view scheme : {"http://", "https://"})
    if (origin.starts_with(scheme) && lower(origin.substr(scheme.size())) == lower(host))
      return true;
  return false;
}

Gate::Gate(Service& s, const Router& r, bool is_admin)
    : context(s),
      router(r),
      admin(is_admin),
      hosts(is_admin ? s.options.admin : s.options.listen, s.options.hosts) {
  if (!admin && !s.options.key_file.empty()) keys.load(s.options.key_file);
}

Gate::Verdict Gate::judge(const Request& request) const {
  Verdict verdict{.match = router.find(request.method, request.path), .refusal = {}};
  const Route* route = verdict.match.route;
  const ErrorForm form = route ? route->errors : ErrorForm::kPlain;
  const auto refuse = [&](int status, std::string_view why) {
    verdict.refusal = error_response(status, why, form);
    return &*verdict.refusal;
  };
  if (!hosts.allows(request.header("host"))) {
    refuse(403, "this server is not called by that name; see --host");
    return verdict;
  }
  const std::string_view origin = request.header("origin"), site = request.header("sec-fetch-site");
  // A page of another site may not use the server by way of a visitor's browser. Browsers tell
  // where a request comes from; other clients have no such header.
  if ((!origin.empty() && !hosts.is_own_origin(origin, request.header("host"))) ||
      site == "cross-site" || site == "same-site") {
    refuse(403, "pages of other origins may not use this server");
    return verdict;
  }
  if (!(route && route->open) && !admin && !keys.empty() &&
      !keys.allows(request.header("authorization"))) {
    refuse(401, "an API key is needed: Authorization: Bearer KEY")
        ->headers.emplace_back("WWW-Authenticate", "Bearer");
    return verdict;
  }
  if (!route) {
    if (verdict.match.allowed.empty())
      refuse(404, "there is nothing here");
    else
      refuse(405, "that method is not for this path")
          ->headers.emplace_back("Allow", verdict.match.allowed);
    return verdict;
  }
  if (request.method == "POST" && !admin && !context.ready)
    refuse(503, "models are still loading")->headers.emplace_back("Retry-After", "1");
  return verdict;
}

std::optional<Reservation> Reservation::take(std::atomic<int64_t>& total, int64_t bytes,
                                             int64_t most) {
  for (int64_t now = total.load(); now + bytes <= most;)
    if (total.compare_exchange_weak(now, now + bytes)) {
      Reservation r;
      r.total_ = &total, r.bytes_ = bytes;
      return r;
    }
  return std::nullopt;
}

}  // namespace vitrum::serve
