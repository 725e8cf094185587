// Bytes over MPI: shared memory on one machine, the cluster's own network between several. MPI adds
// nothing up and says nothing about who is alive: both are done elsewhere, as over sockets.
#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/dist/mpi/plugin.h"

namespace vitrum::mpi {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kPiece = 4 << 20;  // bytes of a message; counts of MPI are ints
constexpr int kTags = 30'000;       // MPI promises 32767 of them
// While nothing comes: others get the core at once, and soon this process sleeps. Cores may be
// fewer than processes.
constexpr auto kAwake = 200us;
constexpr useconds_t kNap = 50;
constexpr auto kCheckEvery = 100ms;

struct Piece {
  int rank = 0, bytes = 0;
  bool received = false;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiTransport() override {
    if (finished_) MPI_Finalize();  // waits for all: not where one may be lost
  }

  void exchange(std::span<const Communicator::Send> sends,
                std::span<const Communicator::Receive> receives,
                const std::function<void()>& check) override {
    tag_ = (tag_ + 1) % kTags;
    pieces_.clear(), requests_.clear();
    for (const auto& [from, bytes] : receives)
      in_pieces(from, bytes, true, [&](std::byte* at, int count, MPI_Request* request) {
        return MPI_Irecv(at, count, MPI_BYTE, from, MPI_ANY_TAG, comm_, request);
      });
    for (const auto& [to, bytes] : sends)
      in_pieces(to, bytes, false, [&](const std::byte* at, int count, MPI_Request* request) {
        return MPI_Isend(at, count, MPI_BYTE, to, tag_, comm_, request);
      });
    wait(check);
  }
  void finish() override { finished_ = true; }

 private:
  template <class Byte, class Start>
  void in_pieces(int rank, std::span<Byte> bytes, bool received, const Start& start) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), kPiece);
      pieces_.push_back({rank, static_cast<int>(count), received});
      MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
      if (start(bytes.data(), pieces_.back().bytes, &request) != MPI_SUCCESS) throw PeerGone{rank};
      bytes = bytes.subspan(count);
    }
  }

  void wait(const std::function<void()>& check) {
    const auto count = static_cast<int>(requests_.size());
    done_.resize(requests_.size()), statuses_.resize(requests_.size());
    auto moved = Clock::now(), checked = moved;
    for (int left = count, done = 0; left > 0;) {
      const int code = MPI_Testsome(count, requests_.data(), &done, done_.data(), statuses_.data());
      for (int i = 0; i < std::max(done, 0); ++i) examine(static_cast<size_t>(i), code);
      left -= std::max(done, 0);
      if (done > 0) {
        moved = Clock::now();
        continue;
      }
      const auto now = Clock::now();
      if (now - moved < kAwake)
        sched_yield();
      else
        usleep(kNap);
      if (now - checked > kCheckEvery) check(), checked = now;
    }
  }

  // Both must be at the same exchange, and agree about how much is sent.
  void examine(size_t i, int code) const {
    const Piece& piece = pieces_[static_cast<size_t>(done_[i])];
    const MPI_Status& status = statuses_[i];
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS &&
        status.MPI_ERROR != MPI_ERR_TRUNCATE)
      throw PeerGone{piece.rank};
    if (!piece.received) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (code != MPI_SUCCESS || bytes != piece.bytes || status.MPI_TAG != tag_)
      fail("rank {} is at exchange {} with {} bytes; expected exchange {} with {}", piece.rank,
           status.MPI_TAG, bytes, tag_, piece.bytes);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int tag_ = 0;
  bool finished_ = false;
  // Of the exchange under way; kept for the next one's.
  std::vector<Piece> pieces_;
  std::vector<MPI_Request> requests_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace
}  // namespace vitrum::mpi

#define VITRUM_EXPORT extern "C" __attribute__((visibility("default")))

VITRUM_EXPORT int vitrum_mpi_abi_version() { return vitrum::mpi::kAbiVersion; }

VITRUM_EXPORT const char* vitrum_mpi_variable() {
#ifdef OPEN_MPI
  return "PMIX_RANK";
#else
  return "PMI_RANK";
#endif
}

VITRUM_EXPORT vitrum::Transport* vitrum_mpi_create(int rank, int size, char* problem,
                                                   size_t bytes) {
  int level = 0, own_rank = -1, own_size = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &own_size);
  if (own_rank == rank && own_size == size) return new vitrum::mpi::MpiTransport;
  fmt::format_to_n(problem, bytes - 1, "is rank {} of {} for MPI", own_rank, own_size);
  return nullptr;
}
