// Verbs that train differ in the recipe keys that have an option of their own.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

enum class KeyKind : uint8_t { kOne, kMany, kFlag };  // kMany: may be given again and again

struct KeyOption {
  std::string option, key, help, value = {};
  std::vector<std::string> choices = {};
  KeyKind kind = KeyKind::kOne;
  std::vector<std::string> also = {};  // other spellings of the option
};

struct TrainingVerb {
  std::string name, summary;
  std::vector<std::string> examples;
  std::vector<KeyOption> keys = {};               // beside those of every run
  std::function<void(const Recipe&)> check = {};  // of what the verb needs, once all is merged
  Task task = Task::kClassify;                    // unless a recipe says otherwise
};
Verb training_verb(TrainingVerb verb);

}  // namespace vitrum
