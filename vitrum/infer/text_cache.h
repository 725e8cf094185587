// Vectors of texts that were asked for before: one file for each model and list of texts, by their
// digests. Where there is no cache, or a file of it is not what it should be, there is nothing.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/dtype.h"

namespace vitrum {

class TextCache {
 public:
  TextCache(const std::string& model, const std::string& backend, DType compute,
            std::span<const std::string> texts);

  std::vector<float> read(size_t numbers) const;  // none where they are not there
  void write(std::span<const float> vectors, size_t texts) const;

 private:
  std::string path_;  // "": no cache
};

}  // namespace vitrum
