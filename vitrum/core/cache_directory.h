#pragma once
#include <string>

namespace vitrum {

// Where files lie that can be made or fetched again: VITRUM_CACHE, or "vitrum" in the user's cache;
// "" where there is no such place. It may not exist yet.
std::string cache_directory();

}  // namespace vitrum
