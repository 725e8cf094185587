// CIFAR's binary version: records of one label byte (CIFAR-100: a coarse one, then the fine one
// that counts) and 3072 bytes of planar RGB, 32 x 32.
#pragma once
#include <memory>
#include <string>

#include "vitrum/data/dataset.h"

namespace vitrum {

// `classes` is 10 or 100, `split` "train" or "test". `dir` holds the .bin files, or the folder of
// the published archive.
// `remedy` ends the message where files are missing.
std::unique_ptr<Dataset> open_cifar(const std::string& dir, const std::string& split, int classes,
                                    const std::string& remedy = {});

}  // namespace vitrum
