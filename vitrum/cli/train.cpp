#include <errno.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "vitrum/cli/live_page.h"
#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/train/trainer.h"

namespace vitrum {
namespace {

struct Options {
  std::optional<std::string> recipe, resume, out;
  std::optional<std::string> model, data, epochs, batch_size, lr, seed;
  std::vector<std::string> set;
};

// Options with a recipe key of their own; the recipe's checks apply to them.
void apply_options(Recipe& recipe, const Options& o, const CommonOptions& common) {
  const auto apply = [&](const std::optional<std::string>& value, const char* key,
                         const char* option) {
    if (value) set_key(recipe, key, *value, option);
  };
  apply(o.model, "model", "--model");
  apply(o.data, "data", "--data");
  apply(o.epochs, "epochs", "--epochs");
  apply(o.batch_size, "batch_size", "--batch-size");
  apply(o.lr, "lr", "--lr");
  apply(o.seed, "seed", "--seed");
  if (common.precision != "auto") set_key(recipe, "precision", common.precision, "--precision");
  for (const std::string& assignment : o.set) set_assignment(recipe, assignment);
}

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Recipe merged_recipe(const Options& o, const CommonOptions& common) {
  if (o.resume && (o.recipe || o.out))
    fail_usage("--resume goes on in the run's own directory with its own recipe; leave out {}",
               o.recipe ? "--recipe" : "--out");
  Recipe recipe;
  if (o.resume) recipe = recipe_of_run(without_trailing_slash(*o.resume));
  if (o.recipe) load_recipe(recipe, *o.recipe);
  apply_options(recipe, o, common);
  return recipe;
}

RunOptions run_options(const Options& o, const CommonOptions& common, const Recipe& recipe) {
  namespace fs = std::filesystem;
  const std::string name =
      o.recipe ? fs::path(*o.recipe).stem().string() : fs::path(recipe.model).filename().string();
  return {.out = without_trailing_slash(o.resume.value_or(o.out.value_or(""))),
          .name = name.empty() ? "run" : name,
          .resume = o.resume.has_value(),
          .device = {.device = common.device, .threads = static_cast<int>(common.threads)},
          .quiet = common.quiet};
}

// For commands that people copy.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+@%-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string percent(double fraction) { return fmt::format("{:.2f} %", 100 * fraction); }

int64_t stored_bytes(ParamStore& store) {
  int64_t bytes = 0;
  for (int a = 0; a < kArenas; ++a)
    if (const auto which = static_cast<Arena>(a); store.has(which))
      bytes += static_cast<int64_t>(store.arena(which).bytes());
  return bytes;
}

std::string opening(Trainer& t) {
  const Recipe& r = t.recipe();
  const ModelConfig& c = t.model().config;
  const int64_t steps = t.total_steps(),
                per_epoch = (steps + t.total_epochs() - 1) / t.total_epochs();
  const std::string accumulated = r.accumulate > 1 ? fmt::format(" x {}", r.accumulate) : "";
  return fmt::format(
      "model   {}: {} parameters, images {}x{}x{}, {} outputs\n"
      "data    {}: {} training and {} test images, {} classes\n"
      "plan    {} epochs of {} steps, batch {}{}, lr {}\n"
      "device  {}, {}; {} for weights and optimiser, {} for activations\n"
      "run     {}{}",
      t.model().architecture, with_commas(t.store().parameter_count()), c.channels(), c.image_h(),
      c.image_w(), c.classes(), r.data, with_commas(t.data().train().size()),
      with_commas(t.data().test().size()), t.data().train().classes().size(), t.total_epochs(),
      with_commas(per_epoch), r.batch_size, accumulated, r.lr, t.backend().name(),
      r.precision == Precision::kBF16 ? "bf16" : "f32", human_bytes(stored_bytes(t.store())),
      human_bytes(t.activation_bytes()), t.directory(),
      t.position().step > 0 ? fmt::format(", resumed after step {}", with_commas(t.position().step))
                            : "");
}

std::string epoch_line(const EpochMetrics& row, bool best, int64_t epochs) {
  const std::string test =
      std::isnan(row.test_acc) ? "" : fmt::format("  test {}", percent(row.test_acc));
  return fmt::format(
      "epoch {:>{}}/{}  loss {:.4f}  train {}{}{}  lr {:.2e}  {:.1f} s, {} images/s\n", row.epoch,
      std::to_string(epochs).size(), epochs, row.train_loss, percent(row.train_acc), test,
      best ? " (best)" : "", row.lr, row.seconds,
      with_commas(static_cast<int64_t>(row.images_per_second)));
}

std::string closing(const Trainer& t, const TrainResult& result) {
  const std::string command = quoted(program_invocation_name),
                    best = quoted(t.directory() + "/best");
  return fmt::format(
      "test accuracy {} (best {} after epoch {})\n"
      "run directory {}\n"
      "try next:\n"
      "  {}/report.html in a browser: curves, mistakes, recipe\n"
      "  {} eval --model {} --data {}\n"
      "  {} bench --model {} --mode infer\n",
      percent(result.last.test_acc), percent(result.best_accuracy), result.best_epoch,
      t.directory(), t.directory(), command, best, quoted(t.recipe().data), command, best);
}

int stopped(const Trainer& t, const TrainResult& result, const CommonOptions& common) {
  info(common,
       fmt::format("stopped after step {}; go on with\n  {} train --resume {}", t.position().step,
                   quoted(program_invocation_name), quoted(t.directory())));
  return 128 + result.signal;
}

int train(const Options& o, const CommonOptions& common) {
  const Recipe recipe = merged_recipe(o, common);
  Trainer trainer(recipe, run_options(o, common, recipe));
  info(common, opening(trainer));
  if (common.verbose) info(common, "\n" + to_toml(trainer.recipe()));
  LivePage page(trainer, common);
  const TrainResult result = trainer.run({.epoch = [&](const EpochMetrics& row, bool best) {
    if (common.json)
      print_out(to_json(row) + "\n");
    else if (!common.quiet)
      print_out(epoch_line(row, best, trainer.total_epochs()));
    page.epoch();
  }});
  page.finish(result.signal);
  if (result.signal != 0) return stopped(trainer, result, common);
  const std::string text = closing(trainer, result);
  if (!common.json)
    print_out(text);
  else
    info(common, text);
  return 0;
}

}  // namespace

Verb train_verb() {
  const auto o = std::make_shared<Options>();
  return {
      .name = "train",
      .summary = "train a model from scratch",
      .examples =
          {"train --recipe recipes/fashion-mnist.toml",
           "train --model vit_tiny_cifar --data cifar10:DIR --epochs 50 --set optimizer=adamw",
           "train --resume runs/fashion-mnist-1"},
      .options = {{"--recipe", &o->recipe, "recipe to start from, a TOML file", "FILE"},
                  {"--model", &o->model, "preset or model directory", "MODEL"},
                  {"--data", &o->data, "fashion-mnist, mnist:DIR, cifar10:DIR, folder:DIR, ...",
                   "DATA"},
                  {"--epochs", &o->epochs, "passes over the training images", "N"},
                  {"--batch-size", &o->batch_size, "images a batch", "N"},
                  {"--lr", &o->lr, "learning rate", "X"},
                  {"--out", &o->out, "run directory (default: the first free runs/NAME-N)", "DIR"},
                  {"--resume", &o->resume, "go on with an interrupted run", "RUN"},
                  {"--seed", &o->seed, "of initialisation, order, dropout and augmentation", "N"},
                  {"--set", &o->set, "any other recipe key; may be given again and again",
                   "KEY=VALUE"}},
      .run = [o](const CommonOptions& common) { return train(*o, common); }};
}

}  // namespace vitrum
