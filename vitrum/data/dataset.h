// Labelled images, read by index. Sources: IDX, CIFAR, class folders, CSV lists, tar shards.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrum/data/decode.h"
#include "vitrum/data/image.h"

namespace vitrum {

struct ImageSize {
  int channels = 0, height = 0, width = 0;
  bool operator==(const ImageSize&) const = default;
};

// Read-only; every member may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Size of every image. Height and width are 0 where they differ from file to file.
  virtual ImageSize image_size() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;
  virtual int label(int64_t index) const = 0;
  virtual std::string name(
      int64_t index) const = 0;  // for messages: the file, or "train sample 17"
  // Reads into `image`, reusing its memory.
  virtual void read_into(int64_t index, Image& image) const = 0;
  // Only the part that `choose` wants.
  virtual void read_part(int64_t index, const ChooseWindow& choose, Image& image) const {
    read_into(index, image);
    crop(choose(image.height, image.width), image);
  }

  // The bytes of its file, as they are. Fails where images are not in files of their own.
  virtual std::vector<uint8_t> file(int64_t index) const;

  // Images that lie together and are cheap to read only together (in a shard far away) have the
  // same number here, one for each image; empty where any order is as good as any other.
  virtual std::vector<int32_t> groups() const { return {}; }
  // Said before an epoch: the images in the order in which they will be read.
  virtual void will_read(std::span<const int64_t> order) const { static_cast<void>(order); }

  Image read(int64_t index) const {
    Image image;
    read_into(index, image);
    return image;
  }
};

struct DataSplits {
  std::unique_ptr<Dataset> train, test;
};

// Opens DATA as the command line spells it: `fashion-mnist[:DIR]`, `mnist:DIR`, `cifar10:DIR`,
// `cifar100:DIR`, `folder:DIR`, `csv:FILE`, `shards:DIR`. For folders, and folders of shards, the
// test split is val/, valid/, validation/ or test/, the first that exists. Where no test images are
// needed, a folder without them, one that holds class folders directly and a CSV without a split
// column are taken too; `test` is null then.
DataSplits open_data(const std::string& spec, bool test_needed = true,
                     const DecodeOptions& options = {});

// One split, for evaluation: "train", "test", "val" (where a source has only one held-out split,
// both names mean it), or "" for the one that training evaluates on: of a folder that holds class
// folders directly and a CSV without a split column, which have no splits to ask for, that is all.
std::unique_ptr<Dataset> open_split(const std::string& spec, const std::string& split = "",
                                    const DecodeOptions& options = {});

bool has_splits(const std::string& spec);
// The splits that open_split() tells apart; none where there are none.
std::vector<std::string> distinct_splits(const std::string& spec);

// What may stand before the colon of DATA.
std::span<const std::string> data_kinds();

// Views of a data set, which must outlive them: those images, in that order; `count` of them (all,
// where there are fewer), the same for the same seed.
std::unique_ptr<Dataset> select_images(const Dataset& dataset, std::vector<int64_t> indices);
std::unique_ptr<Dataset> take_images(const Dataset& dataset, int64_t count, uint64_t seed);

// Part `part` (from 1 on) of `parts`, which are as good as equal and follow each other: all of them
// together are the data set.
std::unique_ptr<Dataset> take_part(std::unique_ptr<Dataset> dataset, int64_t part, int64_t parts);

// (kept, held out): two disjoint views of `dataset`, which must outlive them. The choice depends on
// the seed only.
std::pair<std::unique_ptr<Dataset>, std::unique_ptr<Dataset>> split_holdout(const Dataset& dataset,
                                                                            double fraction,
                                                                            uint64_t seed);

}  // namespace vitrum
