// Where the time of a run that is made kernel by kernel goes.
#pragma once
#include <map>
#include <string>

#include "vitrum/core/json_text.h"
#include "vitrum/runtime/program.h"

namespace vitrum {

// Kernels by kind of op and shape, and by name where the backend has several for an op, with what
// each kind reaches: bytes are those of its operands, so that a kernel which reads them twice shows
// as slow.
class TraceTable {
 public:
  void add(const Program::Step& step, double seconds);
  std::string text() const;
  void to_json(JsonWriter& json) const;  // an array

 private:
  struct Sum {
    int64_t count = 0, bytes = 0, macs = 0;
    double seconds = 0;
  };
  using Kind = std::pair<std::string, std::string>;  // op and shape; kernel
  std::vector<std::pair<Kind, Sum>> sorted() const;  // the costliest first

  std::map<Kind, Sum> kinds_;
  double total_ = 0;
};

}  // namespace vitrum
