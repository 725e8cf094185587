#include "vitrum/dist/use_mpi.h"

#include <cstdlib>

#include "vitrum/core/error.h"
#include "vitrum/core/shared_library.h"
#include "vitrum/dist/mpi/plugin.h"

namespace vitrum {
namespace {

// Opened only in a process that some MPI has started.
class MpiLibrary {
 public:
  MpiLibrary() {
    if (!library_) {
      problem_ =
          "is not installed, or its MPI is not; vitrum is built with it where libopenmpi-dev is";
    } else if (mpi::AbiVersion* version = nullptr;
               !library_.find(mpi::kAbiSymbol, version) || version() != mpi::kAbiVersion) {
      problem_ = "belongs to another version of vitrum; build it again";
    } else if (mpi::Variable* variable = nullptr;
               !library_.find(mpi::kVariableSymbol, variable) || !std::getenv(variable())) {
      problem_ = "is for another MPI than the one that has started this process";
    } else {
      library_.find(mpi::kCreateSymbol, create_);
    }
  }
  std::unique_ptr<Transport> create(const Group& group) {
    char problem[256] = "";
    std::unique_ptr<Transport> made(create_(group.rank(), group.size(), problem, sizeof problem));
    if (!made) problem_ = problem;
    return made;
  }
  const std::string& problem() const { return problem_; }

 private:
  SharedLibrary library_{own_library_places(mpi::kLibraryName, "VITRUM_MPI_LIBRARY")};
  mpi::Create* create_ = nullptr;
  std::string problem_;
};

// What VITRUM_MPI says: 0 or 1, or nothing.
std::string wish() {
  const char* text = std::getenv("VITRUM_MPI");
  const std::string value = text ? text : "";
  if (!value.empty() && value != "0" && value != "1")
    fail_usage("VITRUM_MPI={}: expected 0 or 1", value);
  return value;
}

// Not those that this process has forked, which have its variables.
bool started_by_mpi(const Group& group) {
  for (const char* name : {"PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name); rank && rank == std::to_string(group.rank()))
      return true;
  return false;
}

// Whether all can, which they learn from each other: one that cannot must not leave the others
// waiting in MPI.
bool agree(Group& group, const std::string& problem) {
  const std::vector<std::string> problems = all_gather_text(group, problem);
  for (size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    if (wish() == "1")
      fail_usage("VITRUM_MPI=1, but {} of {} {}", mpi::kLibraryName,
                 group.name_of(static_cast<int>(r)), problems[r]);
    return false;
  }
  return true;
}

}  // namespace

void use_mpi(Group& group) {
  if (wish() == "0") return static_cast<void>(agree(group, "is turned off by VITRUM_MPI=0"));
  if (!started_by_mpi(group))
    return static_cast<void>(agree(group, "is for processes that MPI has started"));
  MpiLibrary library;
  if (!agree(group, library.problem())) return;
  std::unique_ptr<Transport> transport = library.create(group);
  if (agree(group, library.problem())) group.set_transport(std::move(transport));
}

}  // namespace vitrum
