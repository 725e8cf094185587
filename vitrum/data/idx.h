// The IDX format of MNIST and its relatives: big-endian magic (00 00 08 rank), dimensions, bytes.
// Plain or gzip.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"

namespace vitrum {

struct IdxArray {
  std::vector<int64_t> dims;
  std::vector<uint8_t> data;
};

IdxArray read_idx(const std::string& path, int rank);

// `split` is "train" or "test"; the files are {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] in
// `dir`, or in the folders where torchvision keeps them below it.
// `remedy` ends the message where files are missing.
std::unique_ptr<Dataset> open_idx(const std::string& dir, const std::string& split,
                                  std::vector<std::string> classes, const std::string& remedy = {});

}  // namespace vitrum
