#include "vitrum/dist/world.h"

#include <array>
#include <charconv>
#include <functional>
#include <string_view>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

// Names of the variables, in the order in which launchers are looked for: torchrun's are set by
// hand too, and srun starts mpirun's processes.
struct Launcher {
  const char *name, *rank, *size, *local_rank, *local_size, *nodes, *job;
};
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", ""},
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "", "PMIX_NAMESPACE"},
    Launcher{"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", ""},
    Launcher{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
             "SLURM_STEP_NUM_NODES", "SLURM_JOB_ID"}};

class Reader {
 public:
  explicit Reader(const Environment& get) : get_(get) {}

  std::string text(const char* name) const {
    const char* value = *name ? get_(name) : nullptr;
    return value ? value : "";
  }
  int number(const char* name, int missing) const {
    const std::string value = text(name);
    if (value.empty()) return missing;
    int n = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (error != std::errc() || end != value.data() + value.size() || n < 0)
      fail_usage("the environment has {}={}; expected a number", name, value);
    return n;
  }

 private:
  const Environment& get_;
};

// "node[03-07,12],other" -> "node03"
std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == list.npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

bool is_loopback(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

// One of 20000 to 31999 that all processes of a job come to, and others seldom do: from 32768 on
// the system gives ports to whoever connects to somebody.
int port_of(const std::string& job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 12000);
}

}  // namespace

std::optional<World> world_of(const Environment& get) {
  const Reader read(get);
  for (const Launcher& l : kLaunchers) {
    if (read.text(l.rank).empty() || read.number(l.size, 1) < 2) continue;
    World world{.launcher = l.name,
                .rank = read.number(l.rank, 0),
                .size = read.number(l.size, 1),
                .local_rank = read.number(l.local_rank, 0)};
    world.address = read.text("MASTER_ADDR"), world.port = read.number("MASTER_PORT", 0);
    // Who does not say how many are on a machine may say how many machines there are.
    const int nodes = read.number(l.nodes, is_loopback(world.address) ? 1 : world.size);
    world.local_size = read.number(l.local_size, (world.size - 1) / std::max(1, nodes) + 1);
    world.secret = read.text("VITRUM_SECRET");
    if (world.one_machine()) world.address = "127.0.0.1";
    if (world.address.empty()) world.address = first_host(read.text("SLURM_STEP_NODELIST"));
    if (world.port == 0 && *l.job)
      world.port = port_of(read.text(l.job) + read.text("SLURM_STEP_ID"));
    // The agent of torchrun listens on the port itself.
    if (read.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++world.port;
    if (world.rank >= world.size)
      fail_usage("{} says rank {} of {}", world.launcher, world.rank, world.size);
    if (world.address.empty() || world.port == 0)
      fail_usage("{} says rank {} of {}, but not where rank 0 is: set MASTER_ADDR and MASTER_PORT",
                 world.launcher, world.rank, world.size);
    if (!world.one_machine() && world.secret.size() < 16)
      fail_usage(
          "{} processes on several machines prove to each other that they belong together: "
          "set VITRUM_SECRET to the same 16 or more random characters everywhere",
          world.size);
    return world;
  }
  return {};
}

}  // namespace vitrum
