#include "tests/support/packed_photos.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>

#include "tests/support/data_files.h"
#include "vitrum/core/files.h"
#include "vitrum/data/pack.h"

namespace vitrum::test {

namespace fs = std::filesystem;

PackedPhotos::PackedPhotos(const std::string& folder) : path_(folder + "/packed") {
  setenv("VITRUM_CACHE", (folder + "/cache").c_str(), 1);
  const TempDir photos;
  for (const std::string split : {"train", "val"}) {
    for (int i = 0; i < 30; ++i)
      write_file(photos / fmt::format("{}/{}/{}.png", split, i % 3, i),
                 encode_png(gradient(3, 9 + i % 7, 8 + i)));
    fs::create_directories(path_ + "/" + split);
    pack_split(*open_split("folder:" + photos.path(), split), path_ + "/" + split, split,
               {.shards = 5});
  }
}

PackedPhotos::~PackedPhotos() { unsetenv("VITRUM_CACHE"); }

Reply PackedPhotos::reply(const Request& request) const {
  const std::string file = path_ + request.path;
  return fs::is_regular_file(file) ? Reply{.body = read_file(file)} : Reply{.status = 404};
}

}  // namespace vitrum::test
