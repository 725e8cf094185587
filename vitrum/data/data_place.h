#pragma once
#include <string>

namespace vitrum {

// The file or folder that DATA names, whether it is there or not; "" where it names none.
std::string place_of_data(const std::string& spec);

}  // namespace vitrum
