// HTTPS downloads over libcurl: one GET after another on kept connections. Plain http is for
// loopback addresses only.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace vitrum {

// Keys that sign requests as S3 wants it (AWS Signature 4); without them requests are not signed.
struct S3Keys {
  std::string id, secret, session, region;
  std::string url;  // signed are requests to the origin of this URL, no others
};

struct HttpOptions {
  int64_t timeout = 30;          // seconds without data until a try counts as failed
  int64_t min_speed = 10'000;    // bytes a second, or a try counts as failed after `timeout`
  std::string token, token_url;  // the bearer token goes to the origin of this URL, nowhere else
  S3Keys s3 = {};
  std::function<bool()> stop = [] { return false; };  // polled; true ends a transfer
};

struct HttpAnswer {
  int status = 0;                              // 0: none came, see `problem`
  std::map<std::string, std::string> headers;  // of the last answer, names in lower case
  std::string problem;   // of the network: why the answer is missing or not whole; worth a retry
  bool stopped = false;  // as asked

  std::string header(const std::string& name) const;  // "" where absent
};

// Takes the body of a 200 or 206; whatever returns false ends the transfer.
class HttpSink {
 public:
  virtual ~HttpSink() = default;
  virtual bool begin(const HttpAnswer& head) = 0;
  virtual bool write(std::string_view bytes) = 0;
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();

  // Follows up to five redirects, never from https to http. `from` asks for the bytes from there
  // on; the answer is then 206, or 200 with all of them. Fails, in one line, on what a retry will
  // not mend: a URL that is not allowed, an untrusted certificate, too many redirects.
  HttpAnswer get(const std::string& url, int64_t from, HttpSink& sink);
  // A text of at most `limit` bytes; more fails.
  HttpAnswer get_text(const std::string& url, size_t limit, std::string& text);

  bool stop() const { return options_.stop(); }

 private:
  struct Transfer;
  HttpAnswer perform(const std::string& url, int64_t from, HttpSink& sink, std::string& redirect);

  HttpOptions options_;
  std::unique_ptr<void, void (*)(void*)> curl_;
};

std::string host_of(const std::string& url);  // with the port, where it is not the usual one

}  // namespace vitrum
