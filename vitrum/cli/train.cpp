#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "vitrum/cli/live_page.h"
#include "vitrum/cli/output_guard.h"
#include "vitrum/cli/ranks.h"
#include "vitrum/cli/trace_table.h"
#include "vitrum/cli/training.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/json_text.h"
#include "vitrum/train/fast_recipe.h"
#include "vitrum/train/interrupt.h"
#include "vitrum/train/lr_scan.h"
#include "vitrum/train/trainer.h"

namespace vitrum {
namespace {

// Where an option's words go.
struct Given {
  std::optional<std::string> one;
  std::vector<std::string> many;
  bool flag = false;
};

struct Options {
  std::optional<std::string> recipe, resume, out;
  std::vector<std::string> set;
  bool fast = false, trace = false, force = false;
  RankOptions ranks;
  std::vector<KeyOption> keys;
  std::vector<Given> given;  // for each key
  std::function<void(const Recipe&)> check;
  Task task = Task::kClassify;
};

const std::vector<KeyOption> kEveryRun = {
    {"--model", "model", "preset or model directory", "MODEL", {}, KeyKind::kOne, {"--arch"}},
    {"--data", "data", "fashion-mnist, mnist:DIR, cifar10:DIR, folder:DIR, ...", "DATA"},
    {"--epochs", "epochs", "passes over the training images", "N"},
    {"--batch-size", "batch_size", "images a batch", "N"},
    {"--lr", "lr", "learning rate", "X"},
    {"--seed", "seed", "of initialisation, order, dropout and augmentation", "N"}};

OptionTarget target_of(Given& given, KeyKind kind) {
  switch (kind) {
    case KeyKind::kOne: break;
    case KeyKind::kMany: return &given.many;
    case KeyKind::kFlag: return &given.flag;
  }
  return &given.one;
}

// Options with a recipe key of their own; the recipe's checks apply to them.
void apply_options(Recipe& recipe, const Options& o, const CommonOptions& common) {
  const std::string model = recipe.model, weights = recipe.weights;
  for (size_t i = 0; i < o.keys.size(); ++i) {
    const auto set = [&](const std::string& value) {
      set_key(recipe, o.keys[i].key, value, o.keys[i].option);
    };
    if (o.given[i].one) set(*o.given[i].one);
    if (!o.given[i].many.empty()) set(join(o.given[i].many, ","));
    if (o.given[i].flag) set("true");
  }
  // A directory says itself what model it is, whatever the recipe was written for.
  if (recipe.weights != weights && recipe.model == model && is_model_dir(recipe.weights))
    recipe.model.clear();
  if (common.precision != "auto") set_key(recipe, "precision", common.precision, "--precision");
  for (const std::string& assignment : o.set) set_assignment(recipe, assignment);
}

// The recipe keys of the command line: --fast leaves them as they are.
std::vector<std::string> given_keys(const Options& o) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < o.keys.size(); ++i)
    if (o.given[i].one || !o.given[i].many.empty() || o.given[i].flag)
      keys.push_back(o.keys[i].key);
  for (const std::string& assignment : o.set)
    keys.push_back(assignment.substr(0, assignment.find('=')));
  return keys;
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
  recipe.task = o.task;
  if (o.resume) recipe = recipe_of_run(without_trailing_slash(*o.resume));
  if (o.recipe) load_recipe(recipe, *o.recipe);
  apply_options(recipe, o, common);
  if (o.check) o.check(recipe);
  if (!o.fast) return recipe;
  if (o.resume) fail_usage("--fast makes another run of a recipe; a resumed run cannot change");
  return fast_recipe(recipe, given_keys(o));
}

RunOptions run_options(const Options& o, const CommonOptions& common, const Recipe& recipe) {
  namespace fs = std::filesystem;
  const std::string& model = recipe.weights.empty() ? recipe.model : recipe.weights;
  const std::string name = fs::path(without_trailing_slash(o.recipe ? *o.recipe : model)).stem();
  return {.out = without_trailing_slash(o.resume.value_or(o.out.value_or(""))),
          .name = name.empty() ? "run" : name,
          .resume = o.resume.has_value(),
          .device = {.device = common.device, .threads = static_cast<int>(common.threads)},
          .quiet = common.quiet};
}

// A new run's directory may be there, with a log in it perhaps, but not with what a run writes.
void guard_run(const Options& o, const Recipe& recipe) {
  if (o.resume) return;
  OutputGuard guard(o.force);
  for (const std::string& path :
       {recipe.model, recipe.weights, o.recipe.value_or(""), recipe.teacher.value_or("")})
    guard.reads(path);
  guard.reads_data(recipe.data);
  std::error_code ignored;
  if (recipe.teacher_logits)
    std::filesystem::exists(*recipe.teacher_logits, ignored)
        ? guard.reads(*recipe.teacher_logits)
        : guard.refuse_read(*recipe.teacher_logits);
  const std::string out = without_trailing_slash(o.out.value_or("runs"));
  guard.refuse_read(out);
  if (!o.out) return;
  std::vector<std::string> names = {"metrics.csv", "metrics.jsonl", "predictions.csv", "env.json",
                                    "curves.svg",  "confusion.svg", "report.html",     "best",
                                    "last",        "state"};
  for (const std::string& name : entries_of(out))  // a scan removes what it is done with
    if (name.starts_with("lr_scan")) names.push_back(name);
  for (const std::string& name : names) {
    const std::string path = out + "/" + name;
    guard.refuse_around_read(path);
    if (std::filesystem::exists(path, ignored) &&
        !std::filesystem::exists(config_path(out), ignored))
      guard.require_force(path, "is there already, and no run that it belongs to");
  }
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

// What starts from weights, and what of it learns: nothing of a plain run.
std::string learning(Trainer& t) {
  const Recipe& r = t.recipe();
  std::string text;
  if (!r.weights.empty())
    text += fmt::format("weights {} ({}){}{}\n", r.weights, t.loaded().dialect,
                        t.loaded().adapted.empty() ? "" : ": ", join(t.loaded().adapted, "; "));
  int64_t learns = 0;
  for (const ParamSpec& p : t.store().specs()) learns += p.trainable ? p.counted() : 0;
  if (learns < t.store().parameter_count())
    text += fmt::format("learns  {} of {} parameters{}\n", with_commas(learns),
                        with_commas(t.store().parameter_count()),
                        t.keeps_features() ? "; features are computed once and kept" : "");
  return text;
}

std::string teacher_line(const Trainer& t) {
  const Recipe& r = t.recipe();
  if (!t.teacher()) return "";
  const bool hard = r.distillation == Distillation::kHard;
  return fmt::format("teacher {}: {}, {} distillation, alpha {}{}\n",
                     t.teacher()->model().architecture, *r.teacher, hard ? "hard" : "soft", r.alpha,
                     hard ? "" : fmt::format(", tau {}", r.tau));
}

std::string skipped_line(const Trainer& t) {
  const size_t count = t.data().skipped().size();
  if (count == 0) return "";
  return fmt::format("skipped {} image{} that cannot be read: {}\n", count, count == 1 ? "" : "s",
                     skipped_path(t.directory()));
}

// Said where the rate never gets where the recipe wants it.
std::string warm_up(const Trainer& t) {
  const Schedule& s = t.schedule();
  const auto steps = static_cast<int64_t>(std::ceil(s.warmup_steps));
  if (steps < s.total_steps) return "";
  return fmt::format("warning the warm-up has {} steps and the run {}: the rate ends at {:.2g}\n",
                     with_commas(steps), with_commas(s.total_steps), lr_at(s, s.total_steps - 1));
}

// "10 outputs" of a model, or of a pretraining what is hidden and who is asked for it.
std::string answers(const Trainer& t) {
  if (!t.pretrains()) return counted(t.model().config.classes(), "output");
  const MaeConfig mae = mae_for(t.recipe(), t.model());
  return fmt::format("{:.4g} % of patches hidden, decoder {} wide and {} deep",
                     100 * mae.mask_ratio, mae.width, mae.depth);
}

// What the data has, of which a pretraining looks at no labels.
std::string data_counts(const Trainer& t) {
  const std::string train = with_commas(t.data().train().size());
  const int64_t test = t.data().test().size();
  if (t.pretrains() && test == 0) return counted(t.data().train().size(), "training image");
  const std::string both = fmt::format("{} training and {}", train, counted(test, "test image"));
  if (t.pretrains()) return both;
  const auto classes = static_cast<int64_t>(t.data().train().classes().size());
  return fmt::format("{}, {}", both, counted(classes, "class"));
}

std::string opening(Trainer& t) {
  const Recipe& r = t.recipe();
  const ModelConfig& c = t.model().config;
  const int64_t steps = t.total_steps(),
                per_epoch = (steps + t.total_epochs() - 1) / t.total_epochs();
  std::string parts = r.accumulate > 1 ? fmt::format(" x {}", r.accumulate) : "";
  if (r.slices > 1) parts += fmt::format(" in {} slices", r.slices);
  if (t.processes() > 1) parts += fmt::format(" on {} processes", t.processes());
  return fmt::format(
      "model   {}: {}, images {}x{}x{}, {}\n{}"
      "data    {}: {}\n{}"
      "plan    {} of {}, batch {}{}, lr {}\n{}"
      "device  {}, {}; {} for weights and optimiser, {} for activations{}\n"
      "{}run     {}{}",
      t.model().architecture, counted(t.store().parameter_count(), "parameter"), c.channels(),
      c.image_h(), c.image_w(), answers(t), teacher_line(t), r.data, data_counts(t),
      skipped_line(t), counted(t.total_epochs(), "epoch"), counted(per_epoch, "step"),
      t.batch_size(), parts, r.lr, warm_up(t), t.backend().name(),
      r.precision == Precision::kBF16 ? "bf16" : "f32", human_bytes(stored_bytes(t.store())),
      human_bytes(t.activation_bytes()),
      t.image_bytes() > 0 ? fmt::format(", {} for the images", human_bytes(t.image_bytes())) : "",
      learning(t), t.directory(),
      t.position().step > 0 ? fmt::format(", resumed after step {}", with_commas(t.position().step))
                            : "");
}

// "about 12 min", for people who wonder whether to wait.
std::string about(double seconds) {
  if (seconds < 90) return fmt::format("about {:.0f} s", std::max(1.0, seconds));
  if (seconds < 90 * 60) return fmt::format("about {:.0f} min", seconds / 60);
  if (seconds < 36 * 3600) return fmt::format("about {:.1f} h", seconds / 3600);
  return fmt::format("about {:.1f} days", seconds / 86400);
}

// At most 80 columns: the speed goes first where there is no room. The learning rate is in the
// metrics.
std::string epoch_line(const EpochMetrics& row, bool best, int64_t epochs) {
  constexpr size_t kColumns = 80;
  const auto short_percent = [](double x) { return fmt::format("{:.2f}%", 100 * x); };
  std::string line = fmt::format("epoch {:>{}}/{}  loss {:.4f}", row.epoch,
                                 std::to_string(epochs).size(), epochs, row.train_loss);
  if (!std::isnan(row.train_acc)) line += fmt::format("  train {}", short_percent(row.train_acc));
  if (!std::isnan(row.test_acc))
    line += fmt::format("  test {}{}", short_percent(row.test_acc), best ? " best" : "");
  else if (!std::isnan(row.test_loss))
    line += fmt::format("  test loss {:.4f}{}", row.test_loss, best ? " best" : "");
  line += fmt::format("  {:.{}f} s", row.seconds, row.seconds < 1 ? 2 : 1);
  const std::string speed =
      fmt::format(", {} img/s", with_commas(static_cast<int64_t>(row.images_per_second)));
  return line + (line.size() + speed.size() <= kColumns ? speed : "") + "\n";
}

// The row as in metrics.jsonl, and whose it is.
std::string json_line(const std::string& run, const EpochMetrics& row) {
  return fmt::format("{{\"run\":{},{}\n", json_string(run), to_json(row).substr(1));
}

// Of a run that was complete before it was resumed.
std::string already_finished(const Trainer& t) {
  const int64_t done = t.position().epochs;
  const bool patience_ended = done<t.total_epochs(), steps_ended = t.recipe().max_steps> 0;
  const std::string longer =
      patience_ended ? "--set patience=0 goes on"
      : steps_ended  ? "max_steps ended it: start another run for more"
                     : fmt::format("--epochs {} goes on", 2 * std::max<int64_t>(done, 1));
  return fmt::format("finished after {}; {}\n", counted(done, "epoch"), longer);
}

// Of a pretraining: a loss says little to people, so what to do with the model comes next.
std::string closing_pretraining(const Trainer& t, const TrainResult& result) {
  const std::string command = quoted(program_invocation_name),
                    last = quoted(t.directory() + "/last");
  const bool tested = !std::isnan(result.last.test_loss);
  return fmt::format(
      "{} loss {:.4f} (best {:.4f} after epoch {})\n"
      "run directory {}\n"
      "try next:\n"
      "  {}/report.html in a browser: curves, recipe\n"
      "  {} finetune --weights {} --data DATA\n"
      "  {} finetune --weights {} --data DATA --head-only\n"
      "  {} embed photo.jpg --model {} --output features.npy\n",
      tested ? "test" : "training", tested ? result.last.test_loss : result.last.train_loss,
      -result.best_accuracy, result.best_epoch, t.directory(), t.directory(), command, last,
      command, last, command, last);
}

std::string closing(const Trainer& t, const TrainResult& result) {
  if (t.pretrains()) return closing_pretraining(t, result);
  const std::string command = quoted(program_invocation_name),
                    best = quoted(t.directory() + "/best");
  const std::string look =
      fmt::format("eval --model {} --data {}{}{}", best, quoted(t.recipe().data),
                  t.data().held_out().fraction > 0 ? " --split holdout" : "",
                  t.recipe().eval_tta == Tta::kFlip ? " --tta flip" : "");
  return fmt::format(
      "test accuracy {} (best {} after epoch {})\n"
      "run directory {}\n"
      "try next:\n"
      "  {}/report.html in a browser: curves, mistakes, recipe\n"
      "  {} {}\n"
      "  {} serve --model {}, then http://127.0.0.1:8080 in a browser\n"
      "  {} bench --model {} --mode infer\n",
      percent(result.last.test_acc), percent(result.best_accuracy), result.best_epoch,
      t.directory(), t.directory(), command, look, command, best, command, best);
}

int stopped(const std::string& run, const std::string& where, int signal,
            const CommonOptions& common) {
  info(common, fmt::format("stopped {}; go on with\n  {} train --resume {}", where,
                           quoted(program_invocation_name), quoted(run)));
  return 128 + signal;
}

// Returns the signal that stopped it, or 0.
int scan(Recipe& recipe, RunOptions& options, const CommonOptions& common) {
  bool told = false;
  const auto start = [&](const Trainer& t) {
    if (!std::exchange(told, true))
      info(common,
           fmt::format("scan of {}, {} on {} each, judged by {} held out\n"
                       "      lr  accuracy    loss",
                       counted(static_cast<int64_t>(recipe.lr_scan.size()), "learning rate"),
                       counted(recipe.lr_scan_epochs, "epoch"),
                       counted(t.data().train().size(), "image"),
                       with_commas(t.data().test().size())));
  };
  const auto result = [&](const ScanRow& row) {
    info(common, fmt::format("{:>8}  {:>8}  {:>6.4f}", row.lr, percent(row.accuracy), row.loss));
  };
  const int signal = scan_learning_rates(recipe, options, {start, result});
  if (signal == 0) info(common, fmt::format("the best is lr {}\n", recipe.lr));
  return signal;
}

// The first process tries the rates alone and finds what all of them would; the others wait.
int scan_on_ranks(Recipe& recipe, RunOptions& options, const CommonOptions& common, Group* group) {
  if (!group) return scan(recipe, options, common);
  const InterruptGuard interrupt;
  int signal = 0;
  if (group->first()) {
    options.comm = nullptr;
    signal = scan(recipe, options, common);
    options.comm = group;
  }
  broadcast(*group, std::as_writable_bytes(std::span(&recipe.lr, 1)));
  return largest_of(*group, std::max(signal, interrupt.signal()));
}

// How to go on where a process is lost: told by any of them, since rank 0 may be that one.
void advise(Group& group, const Trainer& trainer) {
  const std::string run = all_gather_text(group, trainer.directory())[0];
  group.set_advice(fmt::format("go on with: {} train --resume {}", quoted(program_invocation_name),
                               quoted(run)));
}

int train(const Options& o, const CommonOptions& common, Group* group) {
  Recipe recipe = merged_recipe(o, common);
  if (o.fast)
    info(common,
         fmt::format(
             "--fast: {}, batch {}{}; the recipe's own result needs the whole run\n",
             counted(recipe.epochs, "epoch"), recipe.batch_size,
             recipe.subset > 0 ? ", at most " + counted(recipe.subset, "image") : std::string()));
  if (!group || group->first()) guard_run(o, recipe);
  RunOptions options = run_options(o, common, recipe);
  options.comm = group;
  if (!recipe.lr_scan.empty())
    if (const int signal = scan_on_ranks(recipe, options, common, group))
      return stopped(options.out, "in the scan", signal, common);
  TraceTable trace;
  if (o.trace)
    options.trace = [&](const Program::Step& step, double seconds) { trace.add(step, seconds); };
  Trainer trainer(recipe, options);
  info(common, opening(trainer));
  if (common.verbose) info(common, "\n" + to_toml(trainer.recipe()));
  const bool was_finished = trainer.finished();
  std::optional<LivePage> page;
  if (group) advise(*group, trainer);
  if (!group || group->first()) page.emplace(trainer, common);
  const auto tell = [&](const EpochMetrics& row, bool best) {
    if (common.json)
      print_out(json_line(trainer.directory(), row));
    else if (!common.quiet)
      print_out(epoch_line(row, best, trainer.total_epochs()));
  };
  const auto estimate = [&](double seconds) {
    info(common,
         fmt::format("time    {}{}", recipe.patience > 0 ? "at most " : "", about(seconds)));
  };
  const TrainResult result =
      trainer.run({.epoch = tell, .estimate = estimate, .saved = [&] { page->update(); }});
  if (page) page->finish(result.signal);
  if (common.verbose) info(common, "time    " + trainer.laps().text());
  if (o.trace) info(common, trace.text());
  if (result.signal != 0)
    return stopped(trainer.directory(), fmt::format("after step {}", trainer.position().step),
                   result.signal, common);
  if (!was_finished && trainer.position().epochs < trainer.total_epochs())
    info(common,
         fmt::format("ended early: no better test {} in {}",
                     trainer.pretrains() ? "loss" : "accuracy", counted(recipe.patience, "epoch")));
  const std::string text =
      (was_finished ? already_finished(trainer) : "") + closing(trainer, result);
  if (common.json)
    info(common, text);
  else if (!common.quiet)
    print_text(text);
  return 0;
}

}  // namespace

Verb training_verb(TrainingVerb verb) {
  const auto o = std::make_shared<Options>();
  o->check = verb.check, o->task = verb.task;
  o->keys = kEveryRun;
  o->keys.insert(o->keys.end(), verb.keys.begin(), verb.keys.end());
  o->given.resize(o->keys.size());
  std::vector<Option> options = {
      {"--recipe", &o->recipe, "recipe to start from, a TOML file", "FILE.toml"}};
  for (size_t i = 0; i < o->keys.size(); ++i)
    options.push_back({.name = o->keys[i].option,
                       .target = target_of(o->given[i], o->keys[i].kind),
                       .help = o->keys[i].help,
                       .value = o->keys[i].value,
                       .choices = o->keys[i].choices,
                       .also = o->keys[i].also});
  options.push_back(
      {"--out", &o->out, "run directory (default: the first free runs/NAME-N)", "DIR"});
  options.push_back(force_option(o->force));
  options.push_back({"--resume", &o->resume, "go on with an interrupted run", "RUN"});
  options.push_back(
      {"--fast", &o->fast, "cut down to about a minute on two cores, to try things out"});
  options.push_back(
      {"--trace", &o->trace,
       "run kernel by kernel, slowly: stop at the first that gives NaN or infinity, and say "
       "where time goes"});
  for (Option& option : rank_options(o->ranks)) options.push_back(std::move(option));
  options.push_back(
      {"--set", &o->set, "any other recipe key; may be given again and again", "KEY=VALUE"});
  return {.name = verb.name,
          .summary = verb.summary,
          .examples = verb.examples,
          .options = std::move(options),
          .run = [o](const CommonOptions& common) {
            return run_on_ranks(o->ranks, common, [&](const CommonOptions& own, Group* group) {
              return train(*o, own, group);
            });
          }};
}

Verb train_verb() {
  return training_verb(
      {.name = "train",
       .summary = "train a model from scratch",
       .examples = {"train --recipe recipes/fashion-mnist.toml",
                    "train --model vit_tiny_cifar --data cifar10:DIR --epochs 50 --set "
                    "optimizer=adamw",
                    "train --resume runs/fashion-mnist-1"}});
}

}  // namespace vitrum
