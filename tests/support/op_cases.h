// The grid on which backends are compared: for every op a list of shapes and attributes with data.
#pragma once
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "vitrum/core/tensor.h"
#include "vitrum/graph/op.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::test {

// One operand on the host. `values` are exact in `dtype`; without values it is an output to be
// overwritten.
struct HostTensor {
  Shape shape;
  DType dtype = DType::kF32;
  std::vector<double> values;
  bool present = true;
  bool optional = true;  // an output the op can do without
};

struct OpCase {
  std::string name;  // "LinearBwd gelu drop (3, 17, 65) (3, 17, 33) .."
  Op op;
  std::vector<HostTensor> in, out;
  bool aux_at_end = false;  // all outputs but the first can be left off the list
  double looser = 1;        // tolerance of comparisons, for iterations that let rounding grow
};

inline constexpr size_t kOps = std::variant_size_v<Op>;

// The cases of alternative `index` of Op. `compute` (f32 or bf16) is the dtype of activations and
// weights of linear layers, as assign_dtypes() gives them.
std::vector<OpCase> op_cases(size_t index, DType compute);
std::string op_name(size_t index);

struct RunResult {
  std::vector<HostTensor> out;
  std::string fault;  // an overwritten guard zone or a changed input; empty when all is well
};

// Runs one case with guard zones round every buffer. Outputs start as NaN, or as their values
// (`+=`).
RunResult run_case(Backend& backend, const OpCase& c);

// The first element of `got` off by more than `tolerance` times (its magnitude + the tensor's RMS),
// in words; empty when there is none.
std::string difference(const std::vector<HostTensor>& got, const std::vector<HostTensor>& expected,
                       double tolerance);
// Likewise, for any difference at all.
std::string bit_difference(const std::vector<HostTensor>& got,
                           const std::vector<HostTensor>& expected);

// Runs the case with every subset of its optional outputs absent: what remains must keep its bits.
// Also with the auxiliary outputs left off the list, as in inference. Returns the first fault in
// words.
std::string optional_output_fault(Backend& backend, const OpCase& c);

// Fused ops against the chain of plain ops they stand for: the same bits, in words where they
// differ.
std::string fusion_fault(Backend& backend, DType compute);

}  // namespace vitrum::test
