// What may come next on a command line, for the shells (completion.cpp).
#pragma once
#include <span>
#include <string>
#include <vector>

namespace vitrum {

struct Candidate {
  std::string word, help = {};
};

struct Completion {
  enum class Paths : uint8_t { kNone, kFiles, kDirectories };
  std::vector<Candidate> candidates;  // those that begin with the last word
  // What the shell completes itself, since it knows ~ and quotes: paths behind `prefix` of the last
  // word, only directories, or files that end in `suffix` too.
  Paths paths = Paths::kNone;
  std::string prefix = {}, suffix = {};
};

// `words` are those behind the program's name; the last one, perhaps empty, is to be completed.
Completion complete(std::span<const std::string> words);

}  // namespace vitrum
