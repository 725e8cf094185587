#include "vitrum/core/shared_library.h"

#include <dlfcn.h>

namespace vitrum {

SharedLibrary::SharedLibrary(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace vitrum
