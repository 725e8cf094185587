// Every Python object that a PyTorch checkpoint may name, and what it stands for here. None is ever
// looked up, imported or called: a name that is not in this table ends the reading.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "vitrum/core/dtype.h"

namespace vitrum {

enum class TorchRole : uint8_t {
  kDict,       // a call makes an empty dictionary
  kTensor,     // _rebuild_tensor_v2(storage, offset, size, stride, ...)
  kTensorV3,   // the same with untyped storage and the dtype as seventh argument
  kParameter,  // _rebuild_parameter(tensor, ...)
  kElements,   // a storage's class or a dtype: `elements` says of what
  kInert,      // whatever is made of it is carried along and looked at by nobody
};

enum class TorchElements : uint8_t { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8 };

constexpr size_t size_of(TorchElements e) {
  constexpr std::array<size_t, 9> kSizes = {4, 8, 2, 2, 8, 4, 2, 1, 1};
  return kSizes[static_cast<size_t>(e)];
}
// Small integers, which we have no type for, are widened.
constexpr DType dtype_of(TorchElements e) {
  constexpr std::array<DType, 9> kTypes = {DType::kF32,  DType::kF64, DType::kF16,
                                           DType::kBF16, DType::kI64, DType::kI32,
                                           DType::kI32,  DType::kI32, DType::kU8};
  return kTypes[static_cast<size_t>(e)];
}

struct TorchGlobal {
  std::string_view name;
  TorchRole role;
  TorchElements elements = TorchElements::kU8;
};

inline constexpr std::array kTorchGlobals = std::to_array<TorchGlobal>({
    {"collections.OrderedDict", TorchRole::kDict},
    {"torch._utils._rebuild_tensor_v2", TorchRole::kTensor},
    {"torch._utils._rebuild_tensor_v3", TorchRole::kTensorV3},
    {"torch._utils._rebuild_parameter", TorchRole::kParameter},
    {"torch._utils._rebuild_parameter_with_state", TorchRole::kParameter},
    {"torch.FloatStorage", TorchRole::kElements, TorchElements::kF32},
    {"torch.DoubleStorage", TorchRole::kElements, TorchElements::kF64},
    {"torch.HalfStorage", TorchRole::kElements, TorchElements::kF16},
    {"torch.BFloat16Storage", TorchRole::kElements, TorchElements::kBF16},
    {"torch.LongStorage", TorchRole::kElements, TorchElements::kI64},
    {"torch.IntStorage", TorchRole::kElements, TorchElements::kI32},
    {"torch.ShortStorage", TorchRole::kElements, TorchElements::kI16},
    {"torch.CharStorage", TorchRole::kElements, TorchElements::kI8},
    {"torch.ByteStorage", TorchRole::kElements, TorchElements::kU8},
    {"torch.BoolStorage", TorchRole::kElements, TorchElements::kU8},
    {"torch.storage.UntypedStorage", TorchRole::kElements, TorchElements::kU8},
    {"torch.float32", TorchRole::kElements, TorchElements::kF32},
    {"torch.float64", TorchRole::kElements, TorchElements::kF64},
    {"torch.float16", TorchRole::kElements, TorchElements::kF16},
    {"torch.bfloat16", TorchRole::kElements, TorchElements::kBF16},
    {"torch.int64", TorchRole::kElements, TorchElements::kI64},
    {"torch.int32", TorchRole::kElements, TorchElements::kI32},
    {"torch.int16", TorchRole::kElements, TorchElements::kI16},
    {"torch.int8", TorchRole::kElements, TorchElements::kI8},
    {"torch.uint8", TorchRole::kElements, TorchElements::kU8},
    {"torch.bool", TorchRole::kElements, TorchElements::kU8},
    // What training scripts keep beside the weights.
    {"torch.Size", TorchRole::kInert},
    {"torch.device", TorchRole::kInert},
    {"argparse.Namespace", TorchRole::kInert},
    {"collections.Counter", TorchRole::kInert},
    {"collections.defaultdict", TorchRole::kInert},
    {"__builtin__.dict", TorchRole::kInert},
    {"__builtin__.set", TorchRole::kInert},
    {"pathlib.PosixPath", TorchRole::kInert},
    {"_codecs.encode", TorchRole::kInert},
    {"numpy.dtype", TorchRole::kInert},
    {"numpy.core.multiarray.scalar", TorchRole::kInert},
    {"numpy._core.multiarray.scalar", TorchRole::kInert},
});

}  // namespace vitrum
