#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "vitrum/cli/compare.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

struct Options {
  std::vector<std::string> globs;
  std::string data;
  bool pretrained = false, compare = false;
};

struct Row {
  const Preset* preset;
  int64_t parameters, macs;  // macs of one image
};

bool matches(const Preset& preset, const std::vector<std::string>& globs) {
  const auto fits = [&](const std::string& name) {
    return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
      return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
    });
  };
  return globs.empty() || fits(preset.name) ||
         std::any_of(preset.aliases.begin(), preset.aliases.end(), fits);
}

Row measure(const Preset& preset) {
  Graph g;
  const ModelConfig& c = preset.config;
  model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
  return {&preset, count_parameters(g).all, multiply_adds(g)};
}

std::vector<Row> select(const Options& options) {
  std::vector<Row> rows;
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
    if (matches(preset, options.globs) && (!options.pretrained || !preset.public_weights.empty()))
      rows.push_back(measure(preset));
  }
  if (rows.empty() && !options.globs.empty())
    fail_usage("no model matches '{}'{}; try '*{}*'", options.globs[0],
               did_you_mean(options.globs[0], names), options.globs[0]);
  return rows;
}

std::string json_line(const Row& row) {
  const Preset& p = *row.preset;
  JsonWriter json;
  json.begin_object()
      .field("name", p.name)
      .field("family", p.family)
      .field("parameters", row.parameters);
  json.field("macs", row.macs)
      .field("image_size", p.config.image_h())
      .field("channels", p.config.channels());
  json.field("num_classes", p.config.classes()).key("aliases").begin_array();
  for (const std::string& alias : p.aliases) json.value(alias);
  json.end_array();
  if (!p.note.empty()) json.field("note", p.note);
  json.key("pretrained");
  p.public_weights.empty() ? json.null() : json.value(p.public_weights);
  return json.end_object().str() + "\n";
}

std::string table(const std::vector<Row>& rows, bool aliases, bool pretrained) {
  std::string out = fmt::format("{:<36}{:>14}{:>10}{:>7}\n", "name", "parameters", "MACs", "image");
  for (const Row& row : rows) {
    const Preset& p = *row.preset;
    out += fmt::format("{:<36}{:>14}{:>10}{:>7}\n", p.name, with_commas(row.parameters),
                       human_count(static_cast<double>(row.macs)), p.config.image_h());
    if (!p.note.empty()) out += fmt::format("    {}\n", p.note);
    if (pretrained) out += fmt::format("    weights: {}\n", p.public_weights);
    if (aliases && !p.aliases.empty()) out += fmt::format("    also: {}\n", join(p.aliases, ", "));
  }
  return out;
}

}  // namespace

Verb models_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "models",
          .summary = "list the models known by name, with --verbose their other names too",
          .examples = {"models '*base*'", "models --pretrained --json",
                       "models --compare runs/a/best runs/b/best --data cifar10:DIR"},
          .options = {{"GLOB", &o->globs,
                       "only names or aliases that match, with * and ? as in a shell"},
                      {"--pretrained", &o->pretrained,
                       "only those with known public weights, and where they are"},
                      {"--compare", &o->compare,
                       "one table, the cheapest first; GLOB may be a model directory too"},
                      {"--data", &o->data,
                       "with --compare: accuracy and speed of model directories on this data, the "
                       "best first",
                       "DATA"}},
          .run = [o](const CommonOptions& common) {
            if (o->compare) return compare_models(o->globs, o->data, common);
            if (!o->data.empty()) fail_usage("--data goes with --compare");
            const std::vector<Row> rows = select(*o);
            std::string out;
            for (const Row& row : rows) out += common.json ? json_line(row) : "";
            print_out(common.json ? out : table(rows, common.verbose, o->pretrained));
            return 0;
          }};
}

}  // namespace vitrum
