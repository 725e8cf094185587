// Photos of three classes, packed into shards as `data pack` does it, and what a server of them
// answers.
#pragma once
#include <string>

#include "tests/support/http_server.h"

namespace vitrum::test {

class PackedPhotos {
 public:
  // 30 a split, in five shards each, below `folder`; what is fetched is kept there, too.
  explicit PackedPhotos(const std::string& folder);
  ~PackedPhotos();
  PackedPhotos(const PackedPhotos&) = delete;
  PackedPhotos& operator=(const PackedPhotos&) = delete;

  const std::string& path() const { return path_; }
  Reply reply(const Request& request) const;  // the file that is asked for, or 404

 private:
  std::string path_;
};

}  // namespace vitrum::test
