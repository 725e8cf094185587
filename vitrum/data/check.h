// Every image of a data set looked at once, before anything depends on it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"

namespace vitrum {

struct CheckedImage {
  std::string error;   // why it cannot be read; "": it can
  std::string digest;  // of its size and pixels: images that look the same have the same
};

struct CheckOptions {
  int threads = 0;  // 0: all cores
  bool digests = false;
  std::function<void(int64_t done)> progress = {};  // now and then, from the caller's thread
};

// In the data set's order, whatever the threads. What is not an image's fault (memory) throws.
std::vector<CheckedImage> check_images(const Dataset& dataset, const CheckOptions& options = {});

}  // namespace vitrum
