// Public data sets by name, with pinned checksums.
#pragma once
#include <span>
#include <string>

#include "vitrum/fetch/hub.h"

namespace vitrum {

struct DataArchive {
  const char* name;
  int64_t size;
  const char* sha256;
};

struct PublicData {
  std::string name;                   // "mnist"; DATA is then name:DIR
  std::vector<std::string> sources;   // folders that hold the files, the best first
  std::vector<DataArchive> archives;  // .tar.gz are unpacked, others read as they are
};

std::span<const PublicData> public_data();
// By name; an unknown one is a usage error that offers the nearest.
const PublicData& find_public_data(const std::string& name);

// Into the folder `to`. A `mirror` stands in for the sources; the files of `data` lie below it in a
// folder of its name.
Downloaded download_data(HttpClient& client, const PublicData& data, const std::string& to,
                         const std::string& mirror, const DownloadOptions& options);

}  // namespace vitrum
