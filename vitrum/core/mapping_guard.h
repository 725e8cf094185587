// What keeps a mapped file that somebody cuts short from ending the process. Reading a page that
// is no longer in the file raises SIGBUS; the handler puts zeros there, up to the end of the
// mapping, and remembers the loss. Whoever read asks was_lost() afterwards and throws away what it
// made of the zeros.
//
// The handler is in place while there are guards. A fault anywhere else goes to the handler that
// was there before; one that a program put on top of ours stays there when the last guard goes.
#pragma once
#include <cstddef>

namespace vitrum {

class MappingGuard {
 public:
  MappingGuard() = default;  // of nothing
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&&) = delete;
  ~MappingGuard() { forget(); }

  void emplace(const void* begin, size_t size);  // the whole mapping, once
  void forget();                                 // before the mapping goes

  bool was_lost() const;

  struct Entry;

 private:
  Entry* entry_ = nullptr;
};

}  // namespace vitrum
