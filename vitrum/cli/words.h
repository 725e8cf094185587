// What classify and eval share where a model has a text tower: classes by their names.
#pragma once
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"
#include "vitrum/infer/zero_shot.h"

namespace vitrum {

struct WordOptions {
  std::string labels;
  std::vector<std::string> templates;
};
std::vector<Option> word_options(WordOptions& options);

// The labels that were asked for; none where none were and the model needs none. Fails where a
// model without words is given some, and where one with words has none: `example` is the verb and
// what it works on, for the command that would do.
std::vector<std::string> labels_for(const WordOptions& options, const std::string& model,
                                    const std::string& example);

}  // namespace vitrum
