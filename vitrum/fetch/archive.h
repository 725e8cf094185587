// Unpacks .tar.gz files.
#pragma once
#include <cstdint>
#include <string>

namespace vitrum {

// Writes the regular files of the archive below `to`. A name that leads elsewhere, a link or a
// device, more than `max_bytes` in all, or a damaged archive fails.
void unpack_tar_gz(const std::string& path, const std::string& to, int64_t max_bytes);

}  // namespace vitrum
