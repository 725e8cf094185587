#include "vitrum/core/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace vitrum {

SharedLibrary::SharedLibrary(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

SharedLibrary::SharedLibrary(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if ((handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))) return;
    std::error_code ignored;
    if (const char* why = dlerror(); why && std::filesystem::exists(path, ignored)) why_ = why;
  }
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

std::vector<std::string> own_library_places(const std::string& name, const char* variable) {
  if (const char* given = std::getenv(variable)) return {given};
  std::error_code ignored;
  std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&own_library_places), &info) != 0 && info.dli_fname &&
      std::filesystem::exists(info.dli_fname, ignored))
    own = std::filesystem::absolute(info.dli_fname, ignored);
  const std::filesystem::path dir = own.parent_path();
  return {(dir / name).string(), (dir / "vitrum" / name).string(),
          (dir / VITRUM_BIN_TO_LIB / "vitrum" / name).string(), VITRUM_LIBDIR "/vitrum/" + name,
          name};
}

}  // namespace vitrum
