// Sheets of small pictures of a data set, to be written as PNG.
#pragma once
#include "vitrum/data/augment.h"
#include "vitrum/data/dataset.h"

namespace vitrum {

// A row a class: its name, and its first images beside each other. Of many classes the first ones,
// and a line that says so.
Image class_sheet(const Dataset& dataset);

struct SheetSize {
  int rows = 8, columns = 8;
  int cell = 96;  // pixels
};
// A row an image, evenly spread over the data: its class, how the model sees it in evaluation, and
// how training augments it in one epoch after the other.
Image augmented_sheet(const Dataset& dataset, const Preprocess& preprocess, const Augment& augment,
                      uint64_t seed, const SheetSize& size = {});

}  // namespace vitrum
