#include "vitrum/core/cache_directory.h"

#include <cstdlib>

namespace vitrum {

std::string cache_directory() {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string own = environment("VITRUM_CACHE"); !own.empty()) return own;
  if (const std::string all = environment("XDG_CACHE_HOME"); !all.empty()) return all + "/vitrum";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/vitrum";
}

}  // namespace vitrum
