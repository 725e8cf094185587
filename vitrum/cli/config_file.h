// Options of a verb in a TOML file: `max_batch = 8` is --max-batch 8.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace vitrum {

// Keys and values as words of a command line, in the order of the file's keys. A list is an option
// given several times, and so is a table, with NAME=VALUE for each of its keys. Fails where the
// file is no TOML or holds anything else.
std::vector<std::pair<std::string, std::string>> read_config(const std::string& path);

}  // namespace vitrum
