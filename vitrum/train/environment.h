#pragma once
#include <string>

#include "vitrum/runtime/backend.h"

namespace vitrum {

std::string library_version();
// SHA-256 of the program that runs: two builds of a version may round differently.
std::string program_digest();
// The same of a library that it has opened; empty where it has not.
std::string library_digest(const std::string& file_name);

// env.json of a run: what it ran on and with, so that its figures can be judged later.
std::string environment_json(const Backend& backend, int threads);

}  // namespace vitrum
