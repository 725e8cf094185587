#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/utf8.h"
#include "vitrum/report/attention.h"
#include "vitrum/report/html.h"
#include "vitrum/report/live_report.h"
#include "vitrum/report/plots.h"
#include "vitrum/train/run_dir.h"

namespace vitrum {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string output;
  bool attention = false, force = false;
};

// Runs of the same name are told apart by their paths.
void distinguish(std::vector<ReportRun>& runs) {
  const auto same = [&](const std::string& name) {
    return std::count_if(runs.begin(), runs.end(), [&](const auto& r) { return r.name == name; });
  };
  std::vector<std::string> names;
  for (const ReportRun& run : runs) names.push_back(same(run.name) > 1 ? run.path : run.name);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].name = names[i];
}

// Drawn where it was asked for, or costs next to nothing.
Overlay overlay_of(const ReportRun& run, const Options& o, const CommonOptions& common) {
  const std::string model = model_of_run(run.path);
  if (model.empty() || (!o.attention && !cheap_attention(run))) return {};
  try {
    return attention_overlay(
        model, {.device = common.device, .threads = static_cast<int>(common.threads)});
  } catch (const Error&) {  // a model without attention
    if (o.attention) throw;
    return {};
  }
}

std::string data_of(const std::string& run) {
  try {
    return recipe_of_run(run).data;
  } catch (const Error&) {  // which reading the run is going to say
    return "";
  }
}

// The page, and what is called as its plots are.
void guard_output(const Options& o, const std::string& output) {
  OutputGuard guard(o.force);
  for (const std::string& run : o.runs) guard.reads_run(run), guard.reads_data(data_of(run));
  guard.file(output, Content::kHtml);
  const std::filesystem::path page(output);
  const std::string folder = page.has_parent_path() ? page.parent_path().string() : ".";
  for (const std::string& name : entries_of(folder)) {
    if (!name.starts_with(page.stem().string() + "-")) continue;
    if (name.ends_with(".svg")) guard.file(folder + "/" + name, Content::kSvg);
    if (name.ends_with(".png")) guard.file(folder + "/" + name, Content::kPng);
  }
}

int run(const Options& o, const CommonOptions& common) {
  const std::string output = !o.output.empty()    ? o.output
                             : o.runs.size() == 1 ? report_path(o.runs[0])
                                                  : "report.html";
  guard_output(o, output);
  const int threads = common.threads > 0 ? static_cast<int>(common.threads) : available_cores();
  std::vector<ReportRun> runs;
  for (const std::string& path : o.runs) runs.push_back(read_run(path));
  for (ReportRun& run : runs) {
    add_pictures(run, overlay_of(run, o, common), threads);
    for (const std::string& note : run.notes) info(common, run.name + ": " + note);
  }
  distinguish(runs);
  if (const auto folder = std::filesystem::path(output).parent_path(); !folder.empty())
    ensure_directory(folder.string());
  const std::vector<std::string> plots = write_plots(runs, output, threads);
  write_file_atomic(output, report_html(runs, plots));
  JsonWriter json;
  json.begin_object().field("output", output).key("plots").begin_array();
  for (const std::string& plot : plots) json.value(plot);
  print_out((common.json ? json.end_array().end_object().str() : printable(output)) + "\n");
  return 0;
}

}  // namespace

Verb report_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "report",
          .summary = "one HTML page of a run, or of several compared: curves, mistakes, recipe",
          .examples = {"report runs/mnist-vit-1", "report runs/a runs/b --output compare.html"},
          .options = {{.name = "RUN",
                       .target = &o->runs,
                       .help = "run directory; several are compared",
                       .required = true},
                      {"--output", &o->output,
                       "the page (default: RUN/report.html, of several report.html); its plots "
                       "come beside it as SVG and PNG",
                       "FILE"},
                      {"--attention", &o->attention,
                       "draw over test images what the model looks at, also where that takes "
                       "longer than a second"},
                      force_option(o->force)},
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
