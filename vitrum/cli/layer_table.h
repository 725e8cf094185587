// The layers of a model as a table for people.
#pragma once
#include <string>
#include <vector>

#include "vitrum/runtime/summary.h"

namespace vitrum {

// "name,macs": these columns in this order; "": those that fit on the terminal. An unknown one is a
// usage error. The first row is the whole that shares are of.
std::string layer_table(const std::vector<LayerSummary>& rows, const std::string& columns);
// The names of all columns, for people.
std::string layer_columns();

// Modules that are the same as the one before them, down to their last layer, become one row:
// "1 to 11".
std::vector<LayerSummary> fold_repeats(const std::vector<LayerSummary>& rows);

}  // namespace vitrum
