// Matrix products through cuBLASLt, which is opened at run time. A product is prepared once (its
// algorithm chosen, by timing where a choice can be remembered) and launched many times.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "vitrum/core/dtype.h"

namespace vitrum::cuda {

// Row-major: d (m, n) = a (m, k) b (k, n) + bias (n), or d += a b, or d = alpha a b + beta c.
// Either operand may be stored transposed. A batch is so many products of matrices stored one after
// the other.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::kBF16, out = DType::kBF16;  // of a and b; of d (and of bias)
  bool bias = false, accumulate = false;
  bool gelu_tanh = false;  // of the sum
  int64_t batch = 1;
  float alpha = 1, beta = 0;
  // How many there are depends on how many processes share the work: where that must not change
  // bits, their algorithm is one that suits a single product.
  bool shared_out = false;
};

class Gemms;

// Where products are computed, and with which working memory of kGemmWorkspace bytes.
constexpr size_t kGemmWorkspace = 32 << 20;  // what NVIDIA advises for Hopper
struct GemmPlace {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
};

class Gemm {
 public:
  struct Plan;
  Gemm() = default;
  Gemm(std::shared_ptr<Plan> plan, const GemmPlace& place)
      : plan_(std::move(plan)), place_(place) {}
  void launch(const void* a, const void* b, void* d, const void* bias = nullptr) const;
  void launch_with(const void* a, const void* b, const void* c, void* d,
                   const void* bias = nullptr) const;

 private:
  std::shared_ptr<Plan> plan_;
  GemmPlace place_;
};

// The handle, the workspace and the algorithms chosen so far.
class Gemms {
 public:
  struct State;
  Gemms(cudaStream_t stream, bool tf32, const std::string& card);
  ~Gemms();
  // See Backend.
  void share_choices(const std::string& known, bool more);
  std::string choices() const;
  // `alignment` in bytes holds for every pointer that will be given.
  Gemm prepare(const GemmShape& shape, size_t alignment);
  // Where those are computed that are prepared from now on; null: as they were at first.
  void move_to(const GemmPlace* place);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace vitrum::cuda
