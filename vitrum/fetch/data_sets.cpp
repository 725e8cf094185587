#include "vitrum/fetch/data_sets.h"

#include <fmt/format.h>

#include "vitrum/core/files.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/fetch/archive.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxUnpacked = 1 << 30;  // bytes; CIFAR has 184 MB

std::vector<PublicData> make_table() {
  return {
      {"mnist",
       {"https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist"},
       {{"train-images-idx3-ubyte.gz", 9912422,
         "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
        {"train-labels-idx1-ubyte.gz", 28881,
         "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
        {"t10k-images-idx3-ubyte.gz", 1648877,
         "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
        {"t10k-labels-idx1-ubyte.gz", 4542,
         "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"}}},
      {"fashion-mnist",
       {"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets"},
       {{"train-images-idx3-ubyte.gz", 26421880,
         "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
        {"train-labels-idx1-ubyte.gz", 29515,
         "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
        {"t10k-images-idx3-ubyte.gz", 4422102,
         "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
        {"t10k-labels-idx1-ubyte.gz", 5148,
         "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"}}},
      {"cifar10",
       {"https://www.cs.toronto.edu/~kriz"},
       {{"cifar-10-binary.tar.gz", 170052171,
         "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}}},
      {"cifar100",
       {"https://www.cs.toronto.edu/~kriz"},
       {{"cifar-100-binary.tar.gz", 168513733,
         "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"}}},
  };
}

}  // namespace

std::span<const PublicData> public_data() {
  static const std::vector<PublicData> all = make_table();
  return all;
}

const PublicData& find_public_data(const std::string& name) {
  std::vector<std::string> names;
  for (const PublicData& data : public_data()) {
    if (data.name == name) return data;
    names.push_back(data.name);
  }
  fail_usage("no data set '{}' to download{}; there are {}", name, did_you_mean(name, names),
             join(names, ", "));
}

Downloaded download_data(HttpClient& client, const PublicData& data, const std::string& to,
                         const std::string& mirror, const DownloadOptions& options) {
  std::vector<std::string> sources = data.sources;
  if (!mirror.empty()) sources = {mirror + "/" + data.name};
  Downloaded result;
  std::vector<RemoteFile> files;
  for (const DataArchive& archive : data.archives) {
    RemoteFile file{.path = to + "/" + archive.name,
                    .urls = {},
                    .size = archive.size,
                    .digest = archive.sha256};
    for (const std::string& source : sources) file.urls.push_back(source + "/" + archive.name);
    result.files.push_back(archive.name), result.bytes += archive.size;
    files.push_back(std::move(file));
  }
  const DownloadLock lock(to);
  result.stopped = !download_all(client, files, options);
  if (result.stopped) return result;
  for (const RemoteFile& file : files)
    if (file.path.ends_with(".tar.gz")) unpack_tar_gz(file.path, to, kMaxUnpacked);
  return result;
}

}  // namespace vitrum
