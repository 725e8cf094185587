#include "vitrum/cli/verbs.h"

namespace vitrum {

// In the order in which help lists them: what most people come for first.
std::vector<Verb> all_verbs() {
  return {train_verb(),    finetune_verb(),   distill_verb(),  pretrain_verb(), classify_verb(),
          embed_verb(),    serve_verb(),      eval_verb(),     explain_verb(),  report_verb(),
          summary_verb(),  models_verb(),     data_verb(),     forward_verb(),  convert_verb(),
          quantize_verb(), export_verb(),     download_verb(), bench_verb(),    doctor_verb(),
          man_verb(),      completion_verb(), version_verb()};
}

}  // namespace vitrum
