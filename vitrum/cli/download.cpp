#include <fmt/format.h>

#include <cstdlib>

#include "vitrum/cli/output_guard.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/utf8.h"
#include "vitrum/fetch/hub.h"
#include "vitrum/train/interrupt.h"

namespace vitrum {
namespace {

struct Options {
  std::string id, to, revision = "main";
  double max_size = 20;    // GB
  int64_t timeout = 30;    // seconds
  int64_t min_speed = 10;  // kB a second
  bool force = false;
};

std::string environment(const char* name, const std::string& fallback = "") {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

// Hugging Face's own rule for where its cache is.
std::string hub_cache() {
  const std::string home = environment("XDG_CACHE_HOME", environment("HOME") + "/.cache");
  return environment("HF_HOME", home + "/huggingface");
}

int run(const Options& o, const CommonOptions& common) {
  check_hub_id(o.id);
  if (o.max_size <= 0 || o.max_size > 1e6)
    fail_usage("--max-size {}: expected GB, more than 0 and at most 1000000", o.max_size);
  const HubModel model{.id = o.id,
                       .revision = o.revision,
                       .endpoint = environment("HF_ENDPOINT", "https://huggingface.co"),
                       .cache = hub_cache()};
  const std::string to = o.to.empty() ? o.id.substr(o.id.find('/') + 1) : o.to;
  guard_download(to, o.force, is_of_hub_model);
  const InterruptGuard guard;
  HttpClient client({.timeout = o.timeout,
                     .min_speed = o.min_speed * 1000,
                     .token = environment("HF_TOKEN"),
                     .token_url = model.endpoint,
                     .stop = [&] { return guard.signal() != 0; }});
  const Downloaded result = download_model(
      client, model, to, static_cast<int64_t>(o.max_size * 1e9), {.quiet = common.quiet}, o.force);
  return report_download(result, to, to, guard.signal(), common);
}

}  // namespace

int report_download(const Downloaded& result, const std::string& to, const std::string& use,
                    int signal, const CommonOptions& common) {
  if (result.stopped) {
    info(common, "stopped; the same command goes on from here");
    return 128 + signal;
  }
  if (common.json) {
    JsonWriter json;
    json.begin_object().field("directory", to).key("files").begin_array();
    for (const std::string& name : result.files) json.value(name);
    print_out(json.end_array().field("bytes", result.bytes).end_object().str() + "\n");
    return 0;
  }
  info(common,
       fmt::format("{} files, {}, in {}", result.files.size(), human_bytes(result.bytes), to));
  print_out(printable(use) + "\n");
  return 0;
}

Verb download_verb() {
  auto o = std::make_shared<Options>();
  return {
      .name = "download",
      .summary = "fetch a model directory from the Hugging Face hub",
      .examples = {"download google/vit-base-patch16-224",
                   "download timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k --to vit-tiny",
                   "download google/vit-base-patch16-224 --revision refs/pr/1 --json"},
      .options = {{.name = "ID",
                   .target = &o->id,
                   .help = "the model's name at the hub, owner/name",
                   .required = true},
                  {"--to", &o->to, "directory to write to; by default the model's name", "DIR"},
                  {"--revision", &o->revision, "branch, tag or commit", "NAME"},
                  {"--max-size", &o->max_size, "refuse a model of more than this many GB", "GB"},
                  {.name = "--timeout",
                   .target = &o->timeout,
                   .help =
                       "seconds without data, or slower than --min-speed, before a try is given up",
                   .min = 1,
                   .max = 3600},
                  {.name = "--min-speed",
                   .target = &o->min_speed,
                   .help = "kB a second that must arrive, or a try is given up; 0: any",
                   .value = "KB",
                   .min = 0,
                   .max = 1'000'000},
                  force_option(o->force)},
      .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
