#pragma once
#include <memory>

#include "vitrum/runtime/backend.h"

namespace vitrum {

// Every op in plain loops, computed in double and rounded once: the definition of what an op means,
// the oracle of the tests, and the only backend that runs f64 programs.
std::unique_ptr<Backend> make_reference_backend();

}  // namespace vitrum
