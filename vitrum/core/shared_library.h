// A library opened when it is needed: who does not need it does not have to have it.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

namespace vitrum {

// Closed by no one: what was opened stays for the process.
class SharedLibrary {
 public:
  // The first of `names` that is there; none where none is.
  explicit SharedLibrary(std::initializer_list<const char*> names);
  explicit SharedLibrary(const std::vector<std::string>& paths);

  explicit operator bool() const { return handle_ != nullptr; }
  // Of one that is there and cannot be opened; empty where there is none.
  const std::string& why() const { return why_; }

  // False where the library has no such function: it is too old.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(symbol(name));
    return function != nullptr;
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string why_;
};

// Where a library that belongs to Vitrum itself may be: beside the binary or shared library that
// this code is in, which may be part of another program, and where `make install` and packages put
// it. What the environment's `variable` says goes before all of them.
std::vector<std::string> own_library_places(const std::string& name, const char* variable);

}  // namespace vitrum
