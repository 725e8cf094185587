// How the cards of several processes reach each other: by NCCL, where each process has a card of
// its own, or through the host's memory and the processes' connections. Both move bytes alone.
#include "vitrum/runtime/link.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "vitrum/cuda/host/backend.h"
#include "vitrum/cuda/host/choose_link.h"
#include "vitrum/cuda/host/nccl.h"

namespace vitrum::cuda {
namespace {

// ---- through the host ----

class Pinned {
 public:
  explicit Pinned(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMallocHost(&data_, bytes), "pinned memory for an exchange");
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

class StagedExchange final : public Kernel {
 public:
  StagedExchange(CudaBackend& cuda, Communicator& comm, const RankViews& views)
      : cuda_(cuda), comm_(comm), memory_(bytes_of(views)) {
    std::byte* next = memory_.bytes().data();
    std::map<std::pair<const void*, size_t>, std::byte*> places;  // of what goes to several
    for (const auto& [rank, view] : views.sends) {
      std::byte*& place = places[{view.data, view.bytes()}];
      if (!place) {
        place = std::exchange(next, next + view.bytes());
        out_.push_back({view, place});
      }
      sends_.push_back({rank, {place, view.bytes()}});
    }
    for (const auto& [rank, view] : views.receives) {
      in_.push_back({view, std::exchange(next, next + view.bytes())});
      receives_.push_back({rank, {in_.back().host, view.bytes()}});
    }
  }

  bool on_host() const override { return true; }
  void launch() override {
    for (const auto& [view, host] : out_) copy(host, view.data, view.bytes());
    cuda_.wait();  // for what was received last time, too
    exchange_all(comm_, sends_, receives_);
    for (const auto& [view, host] : in_) copy(view.data, host, view.bytes());
  }
  std::string_view name() const override { return "through the host"; }

 private:
  struct Place {
    TensorView view;
    std::byte* host;
  };

  static size_t bytes_of(const RankViews& views) {
    size_t bytes = 0;
    for (const auto* list : {&views.sends, &views.receives})
      for (const auto& [rank, view] : *list) bytes += view.bytes();
    return bytes;
  }
  void copy(void* to, const void* from, size_t bytes) const {
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_.stream()), "an exchange");
  }

  CudaBackend& cuda_;
  Communicator& comm_;
  const Pinned memory_;
  std::vector<Place> out_, in_;
  std::vector<Communicator::Send> sends_;
  std::vector<Communicator::Receive> receives_;
};

class StagedLink final : public Link {
 public:
  StagedLink(CudaBackend& cuda, Communicator& comm) : Link(comm), cuda_(cuda) {}
  std::shared_ptr<Kernel> exchange(RankViews views) override {
    return std::make_shared<StagedExchange>(cuda_, comm(), views);
  }
  std::shared_ptr<Kernel> arrived() override {
    return make_kernel([] {});
  }
  std::string name() const override { return "the host's memory"; }

 private:
  CudaBackend& cuda_;
};

// ---- NCCL ----

const NcclLibrary& nccl() {
  static const NcclLibrary library(std::getenv("VITRUM_NCCL_LIBRARY"));
  return library;
}

// On a stream of its own, beside the one that computes; events order them, in a captured graph as
// well.
class NcclLink final : public Link {
 public:
  NcclLink(CudaBackend& cuda, Communicator& comm, const NcclId& id)
      : Link(comm), cuda_(cuda), world_(nccl(), id, comm.rank(), comm.size()) {
    check(cudaStreamCreateWithFlags(&aside_, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "an event");
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "an event");
    connect();
    cuda_.set_watch([this] { watch(); });
  }
  ~NcclLink() override {
    cuda_.set_watch({});
    cudaEventDestroy(ready_), cudaEventDestroy(done_);
    cudaStreamDestroy(aside_);
  }

  std::shared_ptr<Kernel> exchange(RankViews views) override {
    std::vector<NcclWorld::Send> sends;
    std::vector<NcclWorld::Receive> receives;
    const auto bytes = [](const TensorView& v) {
      return std::span(static_cast<std::byte*>(v.data), v.bytes());
    };
    for (const auto& [rank, view] : views.sends) sends.push_back({rank, bytes(view)});
    for (const auto& [rank, view] : views.receives) receives.push_back({rank, bytes(view)});
    return named("NCCL", make_kernel([this, sends, receives] {
                   check(cudaEventRecord(ready_, cuda_.stream()), "starting an exchange");
                   check(cudaStreamWaitEvent(aside_, ready_, 0), "starting an exchange");
                   world_.exchange(sends, receives, aside_);
                 }));
  }
  std::shared_ptr<Kernel> arrived() override {
    return named("NCCL", make_kernel([this] {
                   check(cudaEventRecord(done_, aside_), "ending an exchange");
                   check(cudaStreamWaitEvent(cuda_.stream(), done_, 0), "ending an exchange");
                 }));
  }
  bool overlaps() const override { return true; }
  std::string name() const override { return "NCCL " + nccl().version(); }

 private:
  // NCCL connects two cards when they first have something to say to each other, for which it
  // allocates: not while a program is captured.
  void connect() {
    constexpr size_t kBytes = 4096;
    const auto all = static_cast<size_t>(world_.size());
    const Buffer memory = cuda_.allocate(2 * all * kBytes);
    std::vector<NcclWorld::Send> sends;
    std::vector<NcclWorld::Receive> receives;
    for (size_t r = 0; r < all; ++r) {
      sends.push_back({static_cast<int>(r), {memory.data() + r * kBytes, kBytes}});
      receives.push_back({static_cast<int>(r), {memory.data() + (all + r) * kBytes, kBytes}});
    }
    cuda_.wait();
    world_.exchange(sends, receives, aside_);
    check(cudaStreamSynchronize(aside_), "connecting the cards");
  }

  // While the host waits for the card, which may wait for a process that is gone.
  void watch() {
    try {
      comm().check();
      world_.check();
    } catch (...) {
      world_.abort();
      throw;
    }
  }

  CudaBackend& cuda_;
  NcclWorld world_;
  cudaStream_t aside_ = nullptr;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
};

}  // namespace

std::shared_ptr<Link> CudaBackend::link(Communicator& comm) {
  const std::string_view wish = nccl_wish(std::getenv("VITRUM_NCCL"));
  // It would keep the buffers of captured exchanges registered for longer than they live.
  setenv("NCCL_GRAPH_REGISTER", "0", /*replace=*/0);
  LinkOffer own{.card = card_id_, .problem = {}};
  if (wish == "0")
    own.problem = "is turned off by VITRUM_NCCL=0";
  else if (!nccl().problem().empty())
    own.problem = "has no NCCL to use: libnccl.so.2 " + nccl().problem();
  std::vector<LinkOffer> offers;
  for (const std::string& text : all_gather_text(comm, own.text()))
    offers.push_back(LinkOffer::of(text));
  const LinkChoice choice = choose_link(offers);
  if (choice.problem.empty()) {
    NcclId id{};
    if (comm.first()) nccl().check(nccl().GetUniqueId(&id), "a number for the run");
    broadcast(comm, std::as_writable_bytes(std::span(&id, 1)));
    return std::make_shared<NcclLink>(*this, comm, id);
  }
  if (wish == "1")
    fail_usage("VITRUM_NCCL=1, but {} {}", comm.name_of(static_cast<int>(choice.rank)),
               choice.problem);
  return std::make_shared<StagedLink>(*this, comm);
}

}  // namespace vitrum::cuda
