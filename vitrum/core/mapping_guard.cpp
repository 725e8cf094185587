#include "vitrum/core/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>

namespace vitrum {

// A handler may look at an entry at any time: entries are used again, never freed.
struct MappingGuard::Entry {
  std::atomic<uintptr_t> begin = 0, end = 0;  // begin 0: free
  std::atomic<bool> lost = false;
  Entry* next = nullptr;
};

namespace {

using Entry = MappingGuard::Entry;
static_assert(std::atomic<uintptr_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

std::atomic<Entry*> entries = nullptr;
std::mutex changing;
size_t guards = 0;        // under `changing`, as the two below
bool installed = false;   // ours is somewhere in the chain
struct sigaction before;  // whom ours follows; does not change while ours is installed
uintptr_t page_size = 4096;

Entry* entry_at(uintptr_t address) {
  for (Entry* e = entries.load(std::memory_order_acquire); e; e = e->next) {
    const uintptr_t begin = e->begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address < e->end.load(std::memory_order_relaxed))
      return e;
  }
  return nullptr;
}

bool put_zeros(Entry& entry, uintptr_t address) {
  const uintptr_t page = address & ~(page_size - 1), end = entry.end.load();
  entry.lost.store(true);
  return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void die_as_before(int number) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(number, &usual, nullptr);
  raise(number);  // delivered when the handler returns; a fault would also come again by itself
}

void pass_on(int number, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by kill(), not by a fault
  static std::atomic<bool> called = false;
  if ((before.sa_flags & SA_RESETHAND) && called.exchange(true)) return die_as_before(number);
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  if (before.sa_handler == SIG_IGN && sent) return;
  if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) return die_as_before(number);
  before.sa_handler(number);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Entry* entry = info->si_code > 0 ? entry_at(address) : nullptr;
  if (!entry || !put_zeros(*entry, address)) pass_on(number, info, context);
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == on_bus_error;
}

void install() {
  if (installed) return;
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  sigaction(SIGBUS, nullptr, &before);
  struct sigaction ours = before;  // with its mask: it may be called from ours
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
  installed = sigaction(SIGBUS, &ours, nullptr) == 0;
}

void uninstall() {
  struct sigaction now {};
  if (!installed || sigaction(SIGBUS, nullptr, &now) != 0 || !is_ours(now)) return;
  installed = sigaction(SIGBUS, &before, nullptr) != 0;
}

Entry* free_entry() {
  for (Entry* e = entries.load(); e; e = e->next)
    if (e->begin.load() == 0) return e;
  Entry* fresh = new Entry;
  fresh->next = entries.load();
  entries.store(fresh, std::memory_order_release);
  return fresh;
}

}  // namespace

void MappingGuard::emplace(const void* begin, size_t size) {
  const std::lock_guard lock(changing);
  entry_ = free_entry();
  install();
  ++guards;
  const auto start = reinterpret_cast<uintptr_t>(begin);
  entry_->lost = false;
  entry_->end = (start + size + page_size - 1) / page_size * page_size;
  entry_->begin.store(start, std::memory_order_release);
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)) {}

void MappingGuard::forget() {
  if (!entry_) return;
  const std::lock_guard lock(changing);
  std::exchange(entry_, nullptr)->begin = 0;
  if (--guards == 0) uninstall();
}

bool MappingGuard::was_lost() const { return entry_ && entry_->lost.load(); }

}  // namespace vitrum
