#pragma once
#include <string>

#include "vitrum/runtime/backend.h"

namespace vitrum {

std::string library_version();
// SHA-256 of the program that runs: two builds of a version may round differently.
std::string program_digest();

// env.json of a run: what it ran on and with, so that its figures can be judged later.
std::string environment_json(const Backend& backend, int threads);

}  // namespace vitrum
