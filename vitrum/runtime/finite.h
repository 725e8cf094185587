// Finds the first kernel that writes NaN or infinity.
#pragma once
#include <string>

#include "vitrum/runtime/program.h"

namespace vitrum {

// How many values of a tensor are NaN or infinite; 0 of one that does not hold floating point.
int64_t count_not_finite(Backend& backend, const TensorView& view);

// After a kernel of Program::run_traced: fails, as a run whose loss is NaN does, where the kernel
// gave what is no number. Names the kernel, and the operands that were no numbers before it.
// `where`, as "step 12: ", opens the message.
void require_finite(Backend& backend, const Program::Step& step, const std::string& where = {});

}  // namespace vitrum
