// The processes of a run, connected to each other.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vitrum/dist/control.h"
#include "vitrum/dist/mesh.h"
#include "vitrum/runtime/communicator.h"

namespace vitrum {

struct Connections {
  int rank = 0, local_rank = 0, local_size = 1;
  std::vector<std::string> hosts;       // by rank
  std::vector<Descriptor> data, lines;  // by rank, as Mesh and Control take them
  std::vector<pid_t> children = {};     // that this process has started
};

class Group final : public Communicator {
 public:
  Group(Connections connections, std::chrono::seconds timeout);
  ~Group() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(names_.size()); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  std::string name_of(int rank) const override { return names_[static_cast<size_t>(rank)]; }
  void note_step(int64_t step) override { control_->note_step(step); }
  void check() override { control_->check(); }
  void abort(ErrorKind kind, const std::string& why) override {
    failed_ = true;
    control_->abort(kind, why);
  }
  void finish() override;

  // Bytes go this way from now on, in every process of the run; the sockets stay for control.
  void set_transport(std::unique_ptr<Transport> other) { transport_ = std::move(other); }

  // Whether this process tells people what has happened: the first, and the second when that is
  // gone.
  bool speaks() { return control_->speaks(); }
  // What to do where a process is lost: "go on with ...".
  void set_advice(std::string text) { control_->set_advice(std::move(text)); }

 private:
  void end_children();

  const int rank_, local_rank_, local_size_;
  const std::vector<std::string> names_;
  std::vector<pid_t> children_;
  bool failed_ = false;
  std::unique_ptr<Transport> transport_;
  std::optional<Control> control_;
};

}  // namespace vitrum
