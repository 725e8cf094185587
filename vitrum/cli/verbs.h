// What a verb is to the command line: its name, its options as a table, and what it does. Parsing,
// help, man pages and completion are made from the table (parse.cpp, help.cpp, man.cpp,
// complete.cpp).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/data/input_size.h"
#include "vitrum/runtime/backend.h"

namespace vitrum {

// What every verb takes.
struct CommonOptions {
  bool json = false, quiet = false, verbose = false;
  int64_t threads = 0;  // 0: every core this process may use
  std::string device = "auto", precision = "auto";
  std::vector<std::string> arguments = {};  // as given, for a verb that reads its settings again
};

// Where a parsed value goes. An optional stays empty where the option was not given.
using OptionTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                                  std::optional<int64_t>*, std::optional<double>*,
                                  std::optional<std::string>*, std::optional<InputSize>*>;

struct Option {
  std::string name;  // "--batch-size", "-q,--quiet", or "MODEL" for a positional argument
  OptionTarget target;
  std::string help;
  // What the help calls the value; by default N, X or TEXT. Completion goes by it: MODEL, PRESET,
  // DATA, DEVICE, KEY=VALUE, RUN, and whatever ends in DIR, FILE, PATH or FILE.toml.
  std::string value = {};
  bool required = false;
  std::vector<std::string> choices = {};
  int64_t min = 0, max = 1'000'000'000;  // of numbers and edges
  std::vector<std::string> also = {};    // other spellings, which the help leaves out
};

// A verb's targets live in what `run` captures:
//   auto o = std::make_shared<Options>();
//   return {.name = "eval", ..., .options = {{"--model", &o->model, "..."}}, .run = [o](const
//   CommonOptions& c) {...}};
struct Verb {
  std::string name, summary;
  std::vector<std::string> examples;  // two or three command lines, without "vitrum"
  std::vector<Option> options;
  std::function<int(const CommonOptions&)> run;  // returns the exit code
};

Verb bench_verb();
Verb classify_verb();
Verb completion_verb();
Verb convert_verb();
Verb data_verb();
Verb distill_verb();
Verb doctor_verb();
Verb download_verb();
Verb embed_verb();
Verb eval_verb();
Verb explain_verb();
Verb export_verb();
Verb finetune_verb();
Verb forward_verb();
Verb man_verb();
Verb models_verb();
Verb pretrain_verb();
Verb quantize_verb();
Verb report_verb();
Verb serve_verb();
Verb summary_verb();
Verb train_verb();
Verb version_verb();

// The table that parsing, help, man pages and completion are made from.
std::vector<Verb> all_verbs();

// ---- what verbs share ----

// Data for stdout. Where the reader has gone away the rest is dropped quietly; any other failure
// throws.
void print_out(std::string_view text);
// The same for people: what a name of a file or a class could make a terminal do is shown instead.
// A name that is all of a line also goes through printable(), which leaves it one.
void print_text(std::string_view text);
// A line for people on stderr; `info` is silent with --quiet.
void print_error(std::string_view text);
void info(const CommonOptions& common, std::string_view text);

std::unique_ptr<Backend> open_backend(const CommonOptions& common);
// As --precision says; auto is what suits the device, f32 where no model runs.
DType compute_precision(const CommonOptions& common);
DType compute_precision(const CommonOptions& common, const Backend& backend);

// The end of a download: prints what it is `use`d as on stdout, or JSON; returns the exit code.
struct Downloaded;
int report_download(const Downloaded& result, const std::string& to, const std::string& use,
                    int signal, const CommonOptions& common);

std::string with_commas(int64_t n);  // 86,567,656
// "1 epoch", "1,200 epochs", "1 class", "10 classes".
std::string counted(int64_t n, std::string_view what);
std::string human_bytes(int64_t bytes);  // 327.6 MiB
std::string human_count(double n);       // 17.6 G

}  // namespace vitrum
