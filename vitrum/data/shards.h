// Tar shards as a data set: `shards:DIR`. Splits are folders of shards (train/, val/ ...) or told
// by the names of the shards (train-0001.tar).
#pragma once
#include <memory>
#include <string>

#include "vitrum/data/dataset.h"

namespace vitrum {

// `split` as that of open_split(). Classes are those of the training split, where there is one; a
// file classes.txt beside the shards, a name a line, says what numbers mean. `whole_allowed`:
// shards without splits are taken all.
std::unique_ptr<Dataset> open_shards(const std::string& place, const std::string& split,
                                     bool whole_allowed, const DecodeOptions& options = {});
// All of a place without splits, or its training images; labels are all 0, and there are no
// classes.
std::unique_ptr<Dataset> open_unlabelled_shards(const std::string& place,
                                                const DecodeOptions& options = {});

// The splits that a place has, of train, val, valid, validation and test; none: it has no splits.
std::vector<std::string> splits_of_shards(const std::string& place);

}  // namespace vitrum
