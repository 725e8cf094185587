// The calls that make a file last, in the order in which this process makes them. The test binary
// has fsync() and rename() of its own (file_calls.cpp), which tell of themselves and go on.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace vitrum::test {

// While it lives; one at a time.
class FileCalls {
 public:
  // `before_rename` is called with the name of what comes into place.
  explicit FileCalls(std::function<void(const std::string&)> before_rename = {});
  ~FileCalls();
  FileCalls(const FileCalls&) = delete;
  FileCalls& operator=(const FileCalls&) = delete;

  // "sync NAME, 5 bytes", "sync directory NAME", "rename NAME to NAME", without folders.
  std::vector<std::string> made() const;
};

}  // namespace vitrum::test
