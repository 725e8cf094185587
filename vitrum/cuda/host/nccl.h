// NCCL, opened at run time: it moves bytes from card to card. Of CUDA this knows a stream's address
// alone, so that tests have it without a card.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "vitrum/core/error.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum::cuda {

// As nccl.h has them.
struct NcclId {
  char bytes[128];
};
struct NcclComm;

class NcclLibrary {
 public:
  using Result = int;  // 0: all is well
  static constexpr int kBytes = 0, kInProgress = 7;

  Result (*GetVersion)(int*) = nullptr;
  Result (*GetUniqueId)(NcclId*) = nullptr;
  Result (*CommInitRank)(NcclComm**, int size, NcclId, int rank) = nullptr;
  Result (*CommDestroy)(NcclComm*) = nullptr;
  Result (*CommAbort)(NcclComm*) = nullptr;
  Result (*CommGetAsyncError)(NcclComm*, Result*) = nullptr;
  Result (*GroupStart)() = nullptr;
  Result (*GroupEnd)() = nullptr;
  Result (*Send)(const void*, size_t count, int type, int to, NcclComm*, void* stream) = nullptr;
  Result (*Recv)(void*, size_t count, int type, int from, NcclComm*, void* stream) = nullptr;
  const char* (*GetErrorString)(Result) = nullptr;

  // `file`: in place of the system's.
  explicit NcclLibrary(const char* file = nullptr) {
    void* handle = nullptr;
    for (const char* name : {file ? file : "libnccl.so.2", file ? file : "libnccl.so"})
      if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* why = dlerror();
      problem_ = std::string("cannot be opened (") + (why ? why : "no reason given") + ")";
      return;
    }
#define VITRUM_NCCL(name)                                               \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "nccl" #name)); \
  if (!name) problem_ = "has no nccl" #name "; 2.14 or later is needed";
    VITRUM_NCCL(GetVersion)
    VITRUM_NCCL(GetUniqueId)
    VITRUM_NCCL(CommInitRank)
    VITRUM_NCCL(CommDestroy)
    VITRUM_NCCL(CommAbort)
    VITRUM_NCCL(CommGetAsyncError)
    VITRUM_NCCL(GroupStart)
    VITRUM_NCCL(GroupEnd)
    VITRUM_NCCL(Send)
    VITRUM_NCCL(Recv)
    VITRUM_NCCL(GetErrorString)
#undef VITRUM_NCCL
  }

  const std::string& problem() const { return problem_; }  // "" where it can be used
  std::string version() const {
    int number = 0;
    GetVersion(&number);
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }
  void check(Result result, const char* what) const {
    if (result != 0 && result != kInProgress) fail("NCCL: {} ({})", GetErrorString(result), what);
  }

 private:
  std::string problem_;
};

// The cards of a run's processes.
class NcclWorld {
 public:
  using Send = Communicator::Send;
  using Receive = Communicator::Receive;

  // All processes call it with the id that one of them has made.
  NcclWorld(const NcclLibrary& nccl, const NcclId& id, int rank, int size)
      : nccl_(nccl), size_(size) {
    nccl_.check(nccl_.CommInitRank(&comm_, size, id, rank), "connecting the cards");
  }
  ~NcclWorld() {
    if (comm_) nccl_.CommDestroy(comm_);
  }
  NcclWorld(const NcclWorld&) = delete;

  // Gives all of it to the stream; between two processes in the order of both lists.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives, void* stream) {
    nccl_.check(nccl_.GroupStart(), "an exchange");
    for (const auto& [to, bytes] : sends)
      if (!bytes.empty())
        nccl_.check(nccl_.Send(bytes.data(), bytes.size(), NcclLibrary::kBytes, to, comm_, stream),
                    "sending");
    for (const auto& [from, bytes] : receives)
      if (!bytes.empty())
        nccl_.check(
            nccl_.Recv(bytes.data(), bytes.size(), NcclLibrary::kBytes, from, comm_, stream),
            "receiving");
    nccl_.check(nccl_.GroupEnd(), "an exchange");
  }

  // Throws where an exchange under way has failed.
  void check() const {
    NcclLibrary::Result result = 0;
    if (comm_ && nccl_.CommGetAsyncError(comm_, &result) == 0) nccl_.check(result, "an exchange");
  }
  // Ends what is under way, where a process is lost: its cards would wait for ever.
  void abort() {
    if (comm_) nccl_.CommAbort(comm_);
    comm_ = nullptr;
  }
  int size() const { return size_; }

 private:
  const NcclLibrary& nccl_;
  const int size_;
  NcclComm* comm_ = nullptr;
};

}  // namespace vitrum::cuda
