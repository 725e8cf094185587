#pragma once
#include <string>

#include "vitrum/runtime/backend.h"

namespace vitrum {

std::string library_version();

// env.json of a run: what it ran on and with, so that its figures can be judged later.
std::string environment_json(const Backend& backend, int threads);

}  // namespace vitrum
