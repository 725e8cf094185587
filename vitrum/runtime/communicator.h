// Several processes that train one model. The network moves bytes; adding is the caller's, in an
// order that does not depend on how many processes there are. A null pointer means one process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/error.h"

namespace vitrum {

// Another process of the run is gone; the exit code says: try again.
inline constexpr auto kRankLost = static_cast<ErrorKind>(75);

class Communicator {
 public:
  struct Send {
    int to = 0;
    std::span<const std::byte> bytes;
  };
  struct Receive {
    int from = 0;
    std::span<std::byte> bytes;
  };

  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  // among those on this machine
  virtual int local_size() const = 0;

  // Every process calls it at the same point of its work, and each knows what the others send it:
  // between two of them, messages arrive in the order of both lists. Throws where a process is
  // lost, or another has failed.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives) = 0;

  // What messages to people call a process: "rank 3 (node07)".
  virtual std::string name_of(int rank) const = 0;
  // For those messages: how far the run is.
  virtual void note_step(int64_t step) = 0;
  // Throws what exchange() would, at once.
  virtual void check() = 0;
  // Tells the others why this process ends. Nothing is exchanged after it.
  virtual void abort(ErrorKind kind, const std::string& why) = 0;
  // All of them have done their work; returns when every one has come here.
  virtual void finish() = 0;

  bool first() const { return rank() == 0; }
};

// One process that works as if it were one of several: for measurements and tests.
class Alone final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  void exchange(std::span<const Send>, std::span<const Receive>) override {}
  std::string name_of(int) const override { return "rank 0"; }
  void note_step(int64_t) override {}
  void check() override {}
  void abort(ErrorKind, const std::string&) override {}
  void finish() override {}
};

// From every process as many bytes as it has in its place of `all`, to every process.
void all_gather(Communicator& comm, std::span<const std::span<std::byte>> all);
// From rank 0 to the others.
void broadcast(Communicator& comm, std::span<std::byte> bytes);
int largest_of(Communicator& comm, int own);
// Texts of any length, of every process, to every process.
std::vector<std::string> all_gather_text(Communicator& comm, const std::string& own);

}  // namespace vitrum
