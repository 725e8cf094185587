#include <fmt/format.h>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/json_text.h"

namespace vitrum {

Verb version_verb() {
  return {
      .name = "version",
      .summary = "print the version",
      .examples = {"version", "version --json"},
      .options = {},
      .run = [](const CommonOptions& common) {
        print_out(
            common.json
                ? JsonWriter().begin_object().field("version", VITRUM_VERSION).end_object().str() +
                      "\n"
                : fmt::format("vitrum {}\n", VITRUM_VERSION));
        return 0;
      }};
}

}  // namespace vitrum
