// Folders far away: https://.. and s3://BUCKET/FOLDER.
#pragma once
#include <string>
#include <string_view>

#include "vitrum/fetch/http.h"

namespace vitrum {

bool is_remote(std::string_view place);

struct RemotePlace {
  std::string url;   // https://..., without a slash at its end
  HttpOptions http;  // with what its requests are signed
};

// An s3:// place is found and signed as the AWS tools do: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
// AWS_REGION, AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN;
// without keys, as everybody may read it.
RemotePlace remote_place(const std::string& place);

// A name as part of a URL.
std::string percent_encoded(std::string_view name);

}  // namespace vitrum
