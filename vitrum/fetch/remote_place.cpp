#include "vitrum/fetch/remote_place.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

constexpr std::string_view kS3 = "s3://";

// The first of these variables that is set.
std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value && *value) return value;
  return "";
}

std::string without_slash(std::string text) {
  while (text.ends_with('/')) text.pop_back();
  return text;
}

// Buckets with dots do not fit the certificates of hosts of their own.
std::string url_of(const std::string& bucket, const std::string& region) {
  const std::string endpoint =
      without_slash(environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}));
  if (!endpoint.empty()) return endpoint + "/" + bucket;
  if (bucket.find('.') != bucket.npos)
    return fmt::format("https://s3.{}.amazonaws.com/{}", region, bucket);
  return fmt::format("https://{}.s3.{}.amazonaws.com", bucket, region);
}

RemotePlace s3_place(const std::string& place) {
  const std::string rest = without_slash(place.substr(kS3.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string bucket = rest.substr(0, slash);
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
  if (bucket.empty() || bucket.find_first_not_of(kAllowed) != bucket.npos)
    fail_usage("'{}': expected s3://BUCKET/FOLDER", place);
  S3Keys keys{.id = environment({"AWS_ACCESS_KEY_ID"}),
              .secret = environment({"AWS_SECRET_ACCESS_KEY"}),
              .session = environment({"AWS_SESSION_TOKEN"}),
              .region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"})};
  if (keys.id.empty() != keys.secret.empty())
    fail_usage("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both or none");
  for (const std::string* text : {&keys.id, &keys.secret, &keys.session, &keys.region})
    for (const char c : *text)
      if (c <= ' ' || c > '~') fail_usage("an AWS_ variable holds a character that no key has");
  if (keys.region.empty()) keys.region = "us-east-1";
  RemotePlace remote{.url = url_of(bucket, keys.region)};
  keys.url = remote.url;
  if (slash < rest.size()) remote.url += "/" + percent_encoded(rest.substr(slash + 1));
  remote.http.s3 = std::move(keys);
  return remote;
}

}  // namespace

bool is_remote(std::string_view place) {
  return place.starts_with("https://") || place.starts_with("http://") || place.starts_with(kS3);
}

std::string percent_encoded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) && c > 0;
    out += plain || std::string_view("-._~/").find(c) != std::string_view::npos
               ? std::string(1, c)
               : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

RemotePlace remote_place(const std::string& place) {
  return place.starts_with(kS3) ? s3_place(place) : RemotePlace{.url = without_slash(place)};
}

}  // namespace vitrum
