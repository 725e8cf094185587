// What of a graph hangs on nothing but parameters that never change, computed once. Internal to
// runtime/.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "vitrum/runtime/params.h"

namespace vitrum {

struct FoldedValue {
  ValueId id;
  std::vector<std::byte> bytes;
};
// Computes small results of nodes that read only parameters and constants, takes these nodes out of
// `g`, and makes what others read of theirs inputs. Nothing where parameters may change; values of
// `read` stay what they are. Types are assigned already.
std::vector<FoldedValue> fold(Graph& g, std::span<const Value> read, ParamStore& store,
                              Arena weights);

}  // namespace vitrum
