// A library opened when it is needed: who does not need it does not have to have it.
#pragma once
#include <initializer_list>
#include <string>

namespace vitrum {

// Closed by no one: what was opened stays for the process.
class SharedLibrary {
 public:
  // The first of `names` that is there; none where none is.
  explicit SharedLibrary(std::initializer_list<const char*> names);

  explicit operator bool() const { return handle_ != nullptr; }

  // False where the library has no such function: it is too old.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(symbol(name));
    return function != nullptr;
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
};

}  // namespace vitrum
