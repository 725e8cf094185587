#include "vitrum/core/buffer.h"

#include <sys/mman.h>

#include "vitrum/core/error.h"

namespace vitrum {

Buffer allocate_host(size_t bytes) {
  if (bytes == 0) return {};
  // mmap gives zeroed pages, and a failure to reserve is an error here rather than a kill later.
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    fail_exhausted(
        "cannot allocate {:.1f} MiB of memory; try a smaller batch size or recompute = \"block\"",
        static_cast<double>(bytes) / (1 << 20));
  constexpr size_t kHugePage = size_t{2} << 20;
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  return Buffer(p, bytes, [](void* data, size_t n) { munmap(data, n); });
}

void give_back_pages(const Buffer& host) {
  if (host.data()) madvise(host.data(), host.size(), MADV_DONTNEED);
}

}  // namespace vitrum
