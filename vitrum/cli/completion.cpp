// The scripts know nothing of verbs and options: at each press of Tab they ask the binary, so that
// they fit whatever binary is called.
#include <fmt/format.h>

#include "vitrum/cli/complete.h"
#include "vitrum/cli/completion_scripts.h"
#include "vitrum/cli/verbs.h"
#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

struct Options {
  std::string shell;
  std::vector<std::string> words;
};

std::string_view script(const std::string& shell) {
  if (shell == "bash") return kBashCompletion;
  return shell == "zsh" ? kZshCompletion : kFishCompletion;
}

// "WORD<Tab>help" for each candidate, and for paths ":files<Tab>PREFIX<Tab>SUFFIX" or
// ":directories<Tab>PREFIX<Tab>".
std::string to_lines(const Completion& completion) {
  std::string out;
  for (const Candidate& candidate : completion.candidates)
    out += fmt::format("{}\t{}\n", candidate.word, candidate.help);
  if (completion.paths != Completion::Paths::kNone)
    out += fmt::format("{}\t{}\t{}\n",
                       completion.paths == Completion::Paths::kFiles ? ":files" : ":directories",
                       printable(completion.prefix), completion.suffix);
  return out;
}

int run(const Options& o) {
  if (o.words.empty())
    print_out(script(o.shell));
  else
    print_out(to_lines(complete(std::span(o.words).subspan(1))));
  return 0;
}

}  // namespace

Verb completion_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "completion",
          .summary = "print what makes a shell complete verbs, options and their values",
          .examples = {"completion bash > ~/.local/share/bash-completion/completions/vitrum",
                       "completion zsh > ~/.zfunc/_vitrum  # a folder of $fpath",
                       "completion fish > ~/.config/fish/completions/vitrum.fish"},
          .options = {{.name = "SHELL",
                       .target = &o->shell,
                       .help = "whose script",
                       .required = true,
                       .choices = {"bash", "zsh", "fish"}},
                      {"WORD", &o->words,
                       "after --, a command line so far: prints what its last word may become, as "
                       "the scripts ask"}},
          .run = [o](const CommonOptions&) { return run(*o); }};
}

}  // namespace vitrum
