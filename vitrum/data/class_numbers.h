// Which number a class has, where a list names the classes of its images.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace vitrum {

// A whole number from 0 to a million, in decimal digits.
std::optional<int> parse_label(const std::string& text);

// Labels that are all whole numbers are the numbers themselves; others count in byte order of
// their names.
std::map<std::string, int> number_classes(const std::set<std::string>& labels);

// The names in the order of their numbers; a number that has none is its own name.
std::vector<std::string> names_of(const std::map<std::string, int>& labels);

}  // namespace vitrum
