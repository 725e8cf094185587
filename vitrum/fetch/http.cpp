#include "vitrum/fetch/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>

#include "vitrum/core/error.h"
#include "vitrum/core/sha.h"
#include "vitrum/fetch/curl.h"

namespace vitrum {
namespace {

constexpr int kMaxRedirects = 5;
constexpr size_t kMaxHeaders = 200, kMaxErrorBody = 1 << 16;
constexpr long kConnectSeconds = 20;

struct Url {
  std::string scheme, host, port;
  bool operator==(const Url&) const = default;  // same origin
};

Url parse_url(const std::string& text) {
  const std::unique_ptr<CURLU, void (*)(CURLU*)> url(curl().url(), curl().url_cleanup);
  const auto part = [&](CURLUPart which) {
    char* value = nullptr;
    if (curl().url_get(url.get(), which, &value, CURLU_DEFAULT_PORT) != CURLUE_OK)
      return std::string();
    std::string copy(value);
    curl().free(value);
    return copy;
  };
  if (!url || curl().url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME))
    fail_usage("'{}' is not a URL", text);
  return {part(CURLUPART_SCHEME), part(CURLUPART_HOST), part(CURLUPART_PORT)};
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

// Of the URL a transfer starts from, or is redirected to by `from`.
void check_allowed(const Url& url, const std::string& text, const Url* from = nullptr) {
  if (url.scheme == "https") return;
  if (from && from->scheme == "https")
    fail("{} redirects from https to {}, which is refused", from->host, text);
  if (url.scheme != "http" || !is_loopback(url.host))
    fail_usage("{}: only https is allowed (http only to this machine itself)", text);
}

// Trouble that may be gone a second later.
bool is_passing(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_WEIRD_SERVER_REPLY: return true;
    default: return false;
  }
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

class TextSink final : public HttpSink {
 public:
  TextSink(std::string& text, size_t limit) : text_(text), limit_(limit) {}
  bool begin(const HttpAnswer&) override { return text_.clear(), true; }
  bool write(std::string_view bytes) override {
    if (bytes.size() > limit_ - text_.size()) return !(too_long = true);
    text_ += bytes;
    return true;
  }
  bool too_long = false;

 private:
  std::string& text_;
  size_t limit_;
};

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? "" : at->second;
}

// Whether as much arrives in every `seconds` as the least speed asks for. A server that drips, or
// sends a little now and then, would hold a program for ever.
class SpeedCheck {
 public:
  SpeedCheck(int64_t seconds, int64_t least)
      : seconds_(seconds), least_(std::max<int64_t>(least, 1)) {}

  bool too_slow(int64_t received) {
    const std::chrono::duration<double> passed = Clock::now() - since_;
    if (passed.count() < static_cast<double>(seconds_)) return false;
    if (static_cast<double>(received - before_) < static_cast<double>(least_) * passed.count())
      return true;
    since_ = Clock::now(), before_ = received;
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t seconds_, least_, before_ = 0;
  Clock::time_point since_ = Clock::now();
};

// What the callbacks of one request share. An exception must not pass through libcurl: it waits
// here.
struct HttpClient::Transfer {
  CURL* handle;
  HttpSink& sink;
  const std::function<bool()>& stop;
  SpeedCheck speed;
  bool slow = false;
  HttpAnswer answer = {};
  std::exception_ptr thrown = nullptr;
  bool begun = false, enough = false;
  size_t ignored = 0;

  bool has_body() const { return answer.status == 200 || answer.status == 206; }

  bool begin() {
    begun = true;
    return sink.begin(answer);
  }

  bool take(std::string_view bytes) {
    if (!has_body()) return (ignored += bytes.size()) <= kMaxErrorBody;
    return (begun || begin()) && sink.write(bytes);
  }

  template <class Body>
  bool guarded(const Body& body) {
    try {
      return body();
    } catch (...) {
      thrown = std::current_exception();
      return false;
    }
  }

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    auto& t = *static_cast<Transfer*>(self);
    const std::string_view line(data, size);
    const size_t colon = line.find(':');
    if (line.starts_with("HTTP/")) {  // an interim answer may stand before the real one
      t.answer.headers.clear();
      long status = 0;
      curl().easy_getinfo(t.handle, CURLINFO_RESPONSE_CODE, &status);
      t.answer.status = static_cast<int>(status);
    } else if (colon != line.npos && t.answer.headers.size() < kMaxHeaders) {
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      t.answer.headers[name] = trimmed(line.substr(colon + 1));
    }
    return size;
  }

  static size_t on_body(char* data, size_t, size_t size, void* self) {
    auto& t = *static_cast<Transfer*>(self);
    if (t.guarded([&] { return t.take({data, size}); })) return size;
    t.enough = true;
    return size + 1;  // anything else than `size` ends the transfer
  }

  static int on_progress(void* self, curl_off_t, curl_off_t received, curl_off_t, curl_off_t) {
    auto& t = *static_cast<Transfer*>(self);
    t.slow = t.speed.too_slow(received);
    return t.slow || t.stop() ? 1 : 0;
  }
};

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)), curl_(curl().easy_init(), curl().easy_cleanup) {
  if (!curl_) fail("libcurl cannot be started");
  for (const char c : options_.token)
    if (c <= ' ' || c > '~') fail_usage("HF_TOKEN holds a character that no token has");
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::get(const std::string& url, int64_t from, HttpSink& sink) {
  std::string at = url;
  Url place = parse_url(at);
  check_allowed(place, at);
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    std::string next;
    HttpAnswer answer = perform(at, from, sink, next);
    if (next.empty()) return answer;
    const Url target = parse_url(next);
    check_allowed(target, next, &place);
    at = next, place = target;
  }
  fail("{}: more than {} redirects", url, kMaxRedirects);
}

HttpAnswer HttpClient::perform(const std::string& url, int64_t from, HttpSink& sink,
                               std::string& redirect) {
  CURL* const handle = curl_.get();
  Transfer transfer{.handle = handle,
                    .sink = sink,
                    .stop = options_.stop,
                    .speed = {options_.timeout, options_.min_speed}};
  const Url place = parse_url(url);
  char detail[CURL_ERROR_SIZE] = "";
  const std::string range = fmt::format("{}-", from);

  curl().easy_reset(handle);  // connections stay
  const auto set = [&](CURLoption option, auto value) {
    curl().easy_setopt(handle, option, value);
  };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, place.scheme == "http" ? "http" : "https");
  // Every OpenSSL program follows this variable; libcurl does not by itself.
  if (const char* roots = std::getenv("SSL_CERT_FILE"); roots && *roots) set(CURLOPT_CAINFO, roots);
  if (is_loopback(place.host)) set(CURLOPT_PROXY, "");
  set(CURLOPT_USERAGENT, "vitrum/" VITRUM_VERSION);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, std::min<long>(kConnectSeconds, options_.timeout));
  set(CURLOPT_ERRORBUFFER, detail);
  if (from > 0) set(CURLOPT_RANGE, range.c_str());
  if (!options_.token.empty() && place == parse_url(options_.token_url)) {
    set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    set(CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  }
  const S3Keys& keys = options_.s3;
  const std::string pair = keys.id + ":" + keys.secret, scope = "aws:amz:" + keys.region + ":s3";
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> more(nullptr, curl().slist_free_all);
  const auto add_header = [&](const std::string& line) {
    if (curl_slist* longer = curl().slist_append(more.get(), line.c_str()))
      static_cast<void>(more.release()), more.reset(longer);
  };
  if (!keys.id.empty() && place == parse_url(keys.url)) {
    set(CURLOPT_AWS_SIGV4, scope.c_str());
    set(CURLOPT_USERPWD, pair.c_str());
    add_header("x-amz-content-sha256: " +
               sha256(""));  // S3 wants it; libcurl 7.88 does not send it
    if (!keys.session.empty()) add_header("x-amz-security-token: " + keys.session);
    set(CURLOPT_HTTPHEADER, more.get());
  }
  set(CURLOPT_HEADERFUNCTION, Transfer::on_header);
  set(CURLOPT_HEADERDATA, &transfer);
  set(CURLOPT_WRITEFUNCTION, Transfer::on_body);
  set(CURLOPT_WRITEDATA, &transfer);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, Transfer::on_progress);
  set(CURLOPT_XFERINFODATA, &transfer);

  const CURLcode code = curl().easy_perform(handle);
  HttpAnswer& answer = transfer.answer;
  if ((code == CURLE_OK || transfer.enough) && answer.status / 100 == 3) {
    char* location = nullptr;  // absolute; libcurl's
    curl().easy_getinfo(handle, CURLINFO_REDIRECT_URL, &location);
    if (location) redirect = location;
  }
  if (code == CURLE_OK && transfer.has_body() && !transfer.begun)
    transfer.enough = !transfer.guarded([&] { return transfer.begin(); });
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  answer.stopped = options_.stop();
  if (code == CURLE_OK || transfer.enough || answer.stopped) return answer;

  std::string why = *detail ? detail : curl().easy_strerror(code);
  if (transfer.slow)
    why = fmt::format("less than {} bytes a second came for {} seconds",
                      std::max<int64_t>(options_.min_speed, 1), options_.timeout);
  if (!transfer.slow && !is_passing(code)) fail("cannot download from {}: {}", place.host, why);
  answer.problem = fmt::format("cannot download from {}: {}", place.host, why);
  return answer;
}

HttpAnswer HttpClient::get_text(const std::string& url, size_t limit, std::string& text) {
  TextSink sink(text, limit);
  HttpAnswer answer = get(url, 0, sink);
  if (sink.too_long) fail_input("{}: the answer is longer than {} bytes", url, limit);
  return answer;
}

std::string host_of(const std::string& url) {
  const Url u = parse_url(url);
  const bool usual = u.port == (u.scheme == "https" ? "443" : "80");
  return usual ? u.host : u.host + ":" + u.port;
}

}  // namespace vitrum
