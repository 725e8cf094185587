// Tests run where their binary lies, wherever they were started: paths in them are relative to it,
// so that what the compiler makes of a test does not depend on where the source tree is.
#include <filesystem>

namespace {

const bool kMoved = [] {
  std::filesystem::current_path(std::filesystem::read_symlink("/proc/self/exe").parent_path());
  return true;
}();

}  // namespace
