#include "vitrum/cuda/host/gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/cuda/host/backend.h"
#include "vitrum/cuda/host/choices.h"

namespace vitrum::cuda {
namespace {

constexpr int kCandidates = 12, kTimedRuns = 5;

// libcublasLt, opened when the first backend is made: it is large, and slow to load.
struct Library {
// clang-format off
#define VITRUM_CUBLASLT(X) \
  X(Create) X(Destroy) X(GetVersion) X(Matmul) X(MatmulAlgoGetHeuristic) \
  X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
  X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) \
  X(MatmulAlgoCheck)
// clang-format on
#define X(name) decltype(&cublasLt##name) name = nullptr;
  VITRUM_CUBLASLT(X)
#undef X

  Library() {
    void* handle = nullptr;
    for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"})
      if (!handle) handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail("libcublasLt cannot be opened ({}); install the CUDA libraries", dlerror());
#define X(name)                                                             \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "cublasLt" #name)); \
  if (!name) fail("this libcublasLt has no cublasLt" #name "; CUDA 12.4 or later is needed");
    VITRUM_CUBLASLT(X)
#undef X
  }
#undef VITRUM_CUBLASLT
};

const Library& library() {
  static const Library the_library;
  return the_library;
}

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail("cuBLASLt: status {} ({})", static_cast<int>(status), what);
}

cudaDataType_t type_of(DType t) { return t == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

using Algo = cublasLtMatmulAlgo_t;
static_assert(sizeof(Algo::data) == sizeof(Choice));
Choice choice_of(const Algo& algo) { return std::bit_cast<Choice>(algo.data); }
Algo algo_of(const Choice& choice) {
  Algo algo{};
  std::copy(choice.begin(), choice.end(), algo.data);
  return algo;
}

// ---- choices remembered on disk: the same product gets the same algorithm, and so the same bits,
// in every run on this card ----
class AlgoCache {
 public:
  explicit AlgoCache(const std::string& card) {
    std::filesystem::path dir;
    if (const char* own = std::getenv("VITRUM_CACHE"))
      dir = own;
    else if (const char* xdg = std::getenv("XDG_CACHE_HOME"))
      dir = std::filesystem::path(xdg) / "vitrum";
    else if (const char* home = std::getenv("HOME"))
      dir = std::filesystem::path(home) / ".cache" / "vitrum";
    if (dir.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(dir, ignored);
    std::string name =
        fmt::format("gemm{}-{}-{}.txt", kWayOfChoosing, card, library().GetVersion());
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
    path_ = dir / name;
    read();
    writable_ = std::ofstream(path_, std::ios::app).good();
  }

  // A choice that cannot be remembered would differ from run to run.
  bool writable() const { return writable_; }

  const Algo* find(const std::string& key) const {
    const auto it = algos_.find(key);
    return it == algos_.end() ? nullptr : &it->second;
  }
  void add(const std::string& key, const Algo& algo) {
    algos_[key] = algo;
    // One write: runs may share the file.
    std::ofstream(path_, std::ios::app) << Choices::line(key, choice_of(algo));
  }

 private:
  static constexpr int kWayOfChoosing = 2;  // another one does not go by choices of this one

  void read() {
    std::ifstream file(path_);
    Choices choices;
    choices.read_lines(file);
    for (const auto& [key, choice] : choices.of) algos_.try_emplace(key, algo_of(choice));
  }

  std::filesystem::path path_;
  bool writable_ = false;
  std::map<std::string, Algo> algos_;
};

// Numbers such as a model has, in bf16; read as f32 they are such numbers, too.
void put_noise(void* to, size_t bytes, cudaStream_t stream) {
  static const std::vector<uint16_t> noise = [] {
    std::mt19937 random;
    std::normal_distribution<float> normal;
    std::vector<uint16_t> made(1 << 19);
    for (uint16_t& x : made)
      x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
    return made;
  }();
  size_t done = std::min(bytes, noise.size() * sizeof(uint16_t));
  cudaMemcpyAsync(to, noise.data(), done, cudaMemcpyHostToDevice, stream);
  for (size_t more = 0; done < bytes; done += more) {
    more = std::min(done, bytes - done);
    cudaMemcpyAsync(static_cast<std::byte*>(to) + done, to, more, cudaMemcpyDeviceToDevice, stream);
  }
}

class Timer {
 public:
  static constexpr float kNever = 1e30f;

  Timer() {
    check(cudaEventCreate(&start_), "an event"), check(cudaEventCreate(&stop_), "an event");
  }
  Timer(const Timer&) = delete;
  ~Timer() { cudaEventDestroy(start_), cudaEventDestroy(stop_); }

  // Of a run, the mean of `runs` one after the other; `run` says whether it could be started.
  template <class Run>
  float milliseconds(cudaStream_t stream, int runs, const Run& run) const {
    cudaEventRecord(start_, stream);
    for (int i = 0; i < runs; ++i)
      if (!run()) return kNever;
    cudaEventRecord(stop_, stream);
    cudaEventSynchronize(stop_);
    float all = 0;
    cudaEventElapsedTime(&all, start_, stop_);
    return all / static_cast<float>(runs);
  }

 private:
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace

struct Gemms::State {
  GemmPlace home, place;  // of their own; of what is prepared now
  bool tf32;
  cublasLtHandle_t handle = nullptr;
  AlgoCache cache;
  std::map<std::string, std::shared_ptr<Gemm::Plan>> plans;
  const std::string holds_for;
  std::optional<Choices> shared;  // in a run that several processes may share
  bool more = true;               // such a run may still choose by timing

  State(cudaStream_t stream, bool tf32, const std::string& card)
      : home{.stream = stream},
        tf32(tf32),
        cache(card),
        holds_for(fmt::format("{}, cuBLASLt {}", card, library().GetVersion())) {
    check_blas(library().Create(&handle), "creating a handle");
    check(cudaMalloc(&home.workspace, kGemmWorkspace), "cuBLASLt's workspace");
    place = home;
    // Its kernels write parts of sums in a way that initcheck does not see.
    check(cudaMemsetAsync(home.workspace, 0, kGemmWorkspace, stream),
          "clearing cuBLASLt's workspace");
  }
  ~State() {
    plans.clear();
    cudaFree(home.workspace);
    library().Destroy(handle);
  }
};

// cuBLAS thinks in columns: a row-major (m, n) matrix is a column-major (n, m) one, so it computes
// d^T = b^T a^T.
struct Gemm::Plan {
  Gemms::State& state;
  GemmShape shape;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  Algo algo{};

  Plan(Gemms::State& state, const GemmShape& s) : state(state), shape(s) {
    const auto compute =
        s.in == DType::kF32 && state.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_blas(library().MatmulDescCreate(&desc, compute, CUDA_R_32F), "a descriptor");
    const cublasOperation_t first_op = s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second_op = s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first_op);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second_op);
    if (s.bias || s.gelu_tanh)
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, !s.gelu_tanh ? CUBLASLT_EPILOGUE_BIAS
                                         : s.bias     ? CUBLASLT_EPILOGUE_GELU_BIAS
                                                      : CUBLASLT_EPILOGUE_GELU);
    if (s.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.out));
    first = layout(s.in, s.n, s.k, s.b_transposed);
    second = layout(s.in, s.k, s.m, s.a_transposed);
    result = layout(s.out, s.n, s.m, false);
  }
  ~Plan() {
    for (cublasLtMatrixLayout_t l : {first, second, result})
      if (l) library().MatrixLayoutDestroy(l);
    if (desc) library().MatmulDescDestroy(desc);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_blas(library().MatmulDescSetAttribute(desc, attribute, &value, sizeof value),
               "a descriptor's attribute");
  }
  cublasLtMatrixLayout_t layout(DType dtype, int64_t rows, int64_t columns, bool transposed) {
    if (transposed) std::swap(rows, columns);
    cublasLtMatrixLayout_t made = nullptr;
    check_blas(library().MatrixLayoutCreate(&made, type_of(dtype), static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), rows),
               "a matrix layout");
    if (shape.batch == 1) return made;
    const auto give = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
      check_blas(library().MatrixLayoutSetAttribute(made, attribute, &value, sizeof value),
                 "a matrix layout");
    };
    give(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(shape.batch));
    give(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, rows * columns);
    return made;
  }

  cublasStatus_t run(const GemmPlace& place, const Algo& with, const void* a, const void* b,
                     const void* c, void* d, const void* bias) {
    const float alpha = shape.alpha, beta = shape.accumulate ? 1 : shape.beta;
    if (shape.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    return library().Matmul(state.handle, desc, &alpha, b, first, a, second, &beta, c, result, d,
                            result, &with, place.workspace, kGemmWorkspace, place.stream);
  }

  // `whole`: no sum is split over blocks.
  std::vector<Algo> candidates(size_t alignment, bool whole = false) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(library().MatmulPreferenceCreate(&preference), "a preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_blas(
          library().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
          "a preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspace);
    for (auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, static_cast<uint32_t>(alignment));
    // Sums split over blocks are fine where their order is fixed: not the in-place scheme.
    const uint32_t split =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           whole ? uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} : split);
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status =
        library().MatmulAlgoGetHeuristic(state.handle, desc, first, second, result, result,
                                         preference, kCandidates, found.data(), &count);
    library().MatmulPreferenceDestroy(preference);
    std::vector<Algo> algos;
    for (int i = 0; i < count; ++i)
      if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
        algos.push_back(found[static_cast<size_t>(i)].algo);
    if (status != CUBLAS_STATUS_SUCCESS || algos.empty())
      fail("cuBLASLt has no algorithm for ({}, {}) x ({}, {})", shape.m, shape.k, shape.k, shape.n);
    return algos;
  }

  bool takes(const Algo& candidate) const {
    cublasLtMatmulHeuristicResult_t found{};
    return library().MatmulAlgoCheck(state.handle, desc, first, second, result, result, &candidate,
                                     &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= kGemmWorkspace;
  }

  void choose(size_t alignment, const std::string& key) {
    if (!state.shared) return choose_freely(alignment, key);
    if (shape.shared_out) return choose_as_single(alignment);
    std::map<std::string, Choice>& known = state.shared->of;
    if (const auto found = known.find(key); found != known.end()) {
      algo = algo_of(found->second);
      if (takes(algo)) return;
      if (!state.more)
        fail("cuBLASLt does not compute {} here as in the run's first process, or first part", key);
    }
    if (!state.more) return static_cast<void>(algo = candidates(alignment)[0]);
    choose_freely(alignment, key);
    known[key] = choice_of(algo);
  }

  void choose_freely(size_t alignment, const std::string& key) {
    if (const Algo* known = state.cache.find(key); known && takes(*known)) {
      algo = *known;
      return;
    }
    const std::vector<Algo> algos = candidates(alignment);
    algo = algos[0];
    if (!state.cache.writable() || algos.size() == 1) return;
    algo = fastest(algos);
    state.cache.add(key, algo);
  }

  // The first that the library proposes for one product, of those that compute many.
  void choose_as_single(size_t alignment) {
    GemmShape single = shape;
    single.batch = 1;
    for (const Algo& candidate : Plan(state, single).candidates(alignment, /*whole=*/true))
      if (takes(candidate)) return static_cast<void>(algo = candidate);
    fail("cuBLASLt has no algorithm for ({}, {}) x ({}, {}) without split sums", shape.m, shape.k,
         shape.k, shape.n);
  }

  // On scratch operands of the real size. A card that multiplies for long slows down to stay within
  // its power: then what needs the least energy is fastest, which a single run does not show, nor
  // do operands that are all alike. So those that are fast for a moment run on for a while.
  // Weights are no longer in the card's cache when their turn comes: each run has others.
  Algo fastest(const std::vector<Algo>& algos) {
    constexpr size_t kCache = 96 << 20;  // more than any has
    const auto bytes = [&](DType t, int64_t x, int64_t y) {
      return static_cast<size_t>(x * y * shape.batch) * size_of(t);
    };
    const size_t of_b = (bytes(shape.in, shape.k, shape.n) + 255) / 256 * 256,
                 copies = std::clamp<size_t>(kCache / of_b, 1, 64);
    void *a = nullptr, *b = nullptr, *d = nullptr, *bias = nullptr;
    const std::array<std::pair<void**, size_t>, 4> operands = {
        {{&a, bytes(shape.in, shape.m, shape.k)},
         {&b, copies * of_b},
         {&d, bytes(shape.out, shape.m, shape.n)},
         {&bias, bytes(shape.out, shape.n, 1)}}};
    bool fits = true;
    for (auto& [p, size] : operands) {
      fits = fits && cudaMalloc(p, size) == cudaSuccess;
      if (fits) put_noise(*p, size, state.home.stream);
    }
    Algo best = algos[0];
    if (fits) {
      const Timer timer;
      size_t turn = 0;
      const auto time = [&](const Algo& candidate, int runs) {
        return timer.milliseconds(state.home.stream, runs, [&] {
          const std::byte* const own = static_cast<std::byte*>(b) + turn++ % copies * of_b;
          return run(state.home, candidate, a, own, d, d, bias) == CUBLAS_STATUS_SUCCESS;
        });
      };
      best = fastest(algos, time);
    }
    for (auto& [p, size] : operands) cudaFree(*p);
    cudaGetLastError();
    return best;
  }

  // `time` gives milliseconds a run.
  template <class Time>
  static Algo fastest(const std::vector<Algo>& algos, const Time& time) {
    constexpr float kNearly = 1.3f, kLong = 0.02f, kSettling = 25;  // milliseconds
    std::vector<float> times;
    for (const Algo& candidate : algos) {
      float shortest = Timer::kNever;
      time(candidate, 1);  // loads the kernel
      for (int i = 0; i < kTimedRuns; ++i) shortest = std::min(shortest, time(candidate, 1));
      times.push_back(shortest);
    }
    const auto first = [&] {
      return static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
    };
    if (const float shortest = times[first()]; shortest > kLong) {
      const int runs = static_cast<int>(kSettling / shortest) + 1;
      time(algos[first()], 4 * runs);  // until the card has slowed down
      for (size_t i = 0; i < algos.size(); ++i) {
        if (times[i] > kNearly * shortest) {
          times[i] = Timer::kNever;
          continue;
        }
        time(algos[i], runs);
        times[i] = time(algos[i], runs);
      }
    }
    return algos[first()];
  }
};

void Gemm::launch(const void* a, const void* b, void* d, const void* bias) const {
  check_blas(plan_->run(place_, plan_->algo, a, b, d, d, bias), "a matrix product");
}
void Gemm::launch_with(const void* a, const void* b, const void* c, void* d,
                       const void* bias) const {
  check_blas(plan_->run(place_, plan_->algo, a, b, c, d, bias), "a matrix product");
}

Gemms::Gemms(cudaStream_t stream, bool tf32, const std::string& card)
    : state_(std::make_unique<State>(stream, tf32, card)) {}
Gemms::~Gemms() = default;

// Those for another card or library would not give the same bits, nor may they run.
void Gemms::share_choices(const std::string& known, bool more) {
  Choices choices = Choices::from(known);
  if (choices.holds_for != state_->holds_for) {
    if (!more)
      fail_usage("the first process computes on {}, this one on {}; all need the same",
                 choices.holds_for, state_->holds_for);
    choices = {.holds_for = state_->holds_for, .of = {}};
  }
  state_->shared = std::move(choices), state_->more = more;
}

std::string Gemms::choices() const { return state_->shared ? state_->shared->text() : ""; }

Gemm Gemms::prepare(const GemmShape& s, size_t alignment) {
  std::string key = fmt::format(
      "{}x{}x{}{}{}-{}-{}{}{}{}-{}", s.m, s.n, s.k, s.a_transposed ? "t" : "n",
      s.b_transposed ? "t" : "n", name_of(s.in), name_of(s.out), s.bias ? "-bias" : "",
      s.accumulate ? "-add" : "", s.in == DType::kF32 && state_->tf32 ? "-tf32" : "", alignment);
  if (s.gelu_tanh) key += "-gelu";
  if (s.batch > 1) key += fmt::format("-x{}", s.batch);
  if (s.alpha != 1 || s.beta != 0) key += fmt::format("-{}-{}", s.alpha, s.beta);
  std::shared_ptr<Gemm::Plan>& plan = state_->plans[key];
  if (!plan) {
    plan = std::make_shared<Gemm::Plan>(*state_, s);
    plan->choose(alignment, key);
  }
  return Gemm(plan, state_->place);
}

void Gemms::move_to(const GemmPlace* place) { state_->place = place ? *place : state_->home; }

}  // namespace vitrum::cuda
