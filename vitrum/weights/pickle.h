// Python's pickle, as far as PyTorch checkpoints use it. A pickle is a program for a small stack
// machine; this one makes dictionaries, tuples, strings, numbers and descriptions of tensors, and
// can do nothing else. Steps, values and depth are bounded, and strings stay in the file.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/weights/torch_globals.h"

namespace vitrum {

struct PickleValue {
  enum class Kind : uint8_t {
    kInert,
    kNumber,
    kString,
    kTuple,
    kList,
    kDict,
    kGlobal,
    kStorage,
    kTensor
  };

  Kind kind = Kind::kInert;
  uint8_t global = 0;     // kGlobal, kStorage: its place in kTorchGlobals
  int64_t number = 0;     // kNumber; kStorage: how many elements
  std::string_view text;  // kString; kStorage: its key
  // kTuple, kList: the elements; kDict: key, value, key, value; kTensor: storage, offset, size,
  // stride and, where the storage is untyped, the dtype.
  std::vector<uint32_t> items;
};

class Pickle {
 public:
  static constexpr size_t kMaxSteps = 1'000'000, kMaxValues = 250'000, kMaxMemo = 1'000'000;

  // `who` opens messages. The bytes must outlive this.
  Pickle(std::string_view bytes, const std::string& who);

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& operator[](uint32_t ref) const { return values_[ref]; }

 private:
  friend class PickleMachine;
  std::deque<PickleValue> values_;
  uint32_t root_ = 0;
};

}  // namespace vitrum
