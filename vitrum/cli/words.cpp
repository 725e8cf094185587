#include "vitrum/cli/words.h"

#include "vitrum/core/error.h"

namespace vitrum {

std::vector<Option> word_options(WordOptions& o) {
  return {{"--labels", &o.labels,
           "classes by their names, where the model has a text tower (CLIP, SigLIP): \"a cat,a "
           "dog\", or @FILE with one a line",
           "TEXT"},
          {"--template", &o.templates,
           "a text around each label, \"a photo of a {}.\"; may be repeated, then their mean "
           "counts",
           "TEXT"}};
}

std::vector<std::string> labels_for(const WordOptions& o, const std::string& model,
                                    const std::string& example) {
  if (o.labels.empty()) {
    if (has_text_tower(model))
      fail_usage(
          "{} knows classes by words and has none of its own: `vitrum {} --model {} --labels \"a "
          "cat,a dog\"`",
          model, example, model);
    if (!o.templates.empty()) fail_usage("--template goes with --labels");
    return {};
  }
  std::vector<std::string> labels = read_labels(o.labels);
  resolve_text_tower(model);  // fails before anything is computed
  return labels;
}

}  // namespace vitrum
