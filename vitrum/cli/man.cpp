// Man pages, in roff's man macros, from the table of verbs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vitrum/cli/output_guard.h"
#include "vitrum/cli/parse.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/nearest.h"

namespace vitrum {
namespace {

struct Options {
  std::string verb, output;
  bool force = false;
};

// Text as roff prints it unchanged; what stands between backquotes is a command, and bold.
std::string roff(std::string_view text) {
  std::string out;
  bool bold = false;
  for (const char c : text) {
    if (c == '`')
      out += std::exchange(bold, !bold) ? "\\fR" : "\\fB";
    else if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";  // a plain one may become a hyphen, which cannot be copied
    else if (c == '\'')
      out += "\\(aq";
    else
      out += c;
  }
  // A line that starts with a dot would be a request.
  return out.starts_with('.') ? "\\&" + out : out;
}

std::string title(const std::string& name) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return fmt::format(".TH {} 1 \"{}\" \"vitrum {}\" \"Vitrum\"\n", roff(upper), VITRUM_RELEASE_DATE,
                     VITRUM_VERSION);
}

std::string section(std::string_view name, const std::string& body) {
  return body.empty() ? "" : fmt::format(".SH {}\n{}", name, body);
}

// "-q, --quiet", "--threads N", or "IMAGE".
std::string entry(const Option& option) {
  std::string name = option.name;
  if (const size_t comma = name.find(','); comma != name.npos) name.insert(comma + 1, " ");
  const std::string value = is_positional(option) ? "" : value_name(option);
  const std::string shown = value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(value));
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(name), shown, roff(explanation(option)));
}

template <class Entries>
std::string entries(const Entries& options) {
  std::string out;
  for (const Option& option : options) out += entry(option);
  return out;
}

std::string examples(const std::vector<std::string>& commands) {
  std::string out;
  for (const std::string& command : commands) out += fmt::format("vitrum {}\n", roff(command));
  return fmt::format(".nf\n{}.fi\n", out);
}

std::string common_entries() {
  CommonOptions defaults;
  return entries(common_options(defaults));
}

constexpr std::string_view kExitStatus = R"(.TP
.B 0
done
.TP
.B 1
failed
.TP
.B 2
usage: an option or an argument makes no sense
.TP
.B 3
bad input: a file, model, image or data set cannot be used
.TP
.B 4
out of memory or disk
.TP
.B 75
another process of the run was lost: try again
.TP
.B 130, 143
stopped by Ctrl\-C or SIGTERM; what was done is saved where a run can be resumed
)";

constexpr std::string_view kEnvironment = R"(Every option may come from the environment:
.B \-\-batch\-size
from
.BR VITRUM_BATCH_SIZE .
The command line wins.
.TP
.B HF_ENDPOINT, HF_HOME, HF_TOKEN
where models are downloaded from, Hugging Face\(aqs cache, and the key for private models
.TP
.B NO_COLOR
no colour on a terminal
.TP
.B VITRUM_CUDA_LIBRARY
the CUDA backend to open, libvitrum_cuda.so
.TP
.B VITRUM_ISA
the newest instruction set to use: avx2, avx_vnni, avx512, avx512_bf16 or amx
.TP
.B VITRUM_MPI, VITRUM_MPI_LIBRARY
0: processes that mpirun has started keep to sockets, 1: they must use MPI; the library for it to open,
libvitrum_mpi.so
.TP
.B VITRUM_SECRET
what processes of a run on several machines prove to each other to know
)";

std::string main_page(const std::vector<Verb>& verbs) {
  std::string list;
  for (const Verb& verb : verbs)
    list += fmt::format(".TP\n.BR vitrum\\-{} (1)\n{}\n", verb.name, roff(verb.summary));
  return title("vitrum") + section("NAME", "vitrum \\- vision transformers without Python\n") +
         section("SYNOPSIS", ".B vitrum\n.I VERB\n[\\fIoptions\\fR]\n") +
         section(
             "DESCRIPTION",
             "Trains, fine\\-tunes, distils, evaluates, explains, exports and serves vision\n"
             "transformers and convolutional networks on a CPU or an NVIDIA card.\n"
             "It reads the files of timm, transformers and torchvision as they are.\n"
             ".PP\n\\fBvitrum\\fR \\fIVERB\\fR \\fB\\-\\-help\\fR explains a verb, as does its\n"
             "manual page.\n") +
         section("VERBS", list) + section("\"OPTIONS OF EVERY VERB\"", common_entries()) +
         section("EXAMPLES",
                 examples({"download timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
                           "classify photos/ --model vit_tiny_patch16_224."
                           "augreg_in21k_ft_in1k",
                           "finetune --weights DIR --data folder:photos", "serve --model DIR"})) +
         section("\"EXIT STATUS\"", std::string(kExitStatus)) +
         section("ENVIRONMENT", std::string(kEnvironment));
}

std::string verb_page(const Verb& verb) {
  std::string summary = verb.summary;
  summary[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(summary[0])));
  return title("vitrum-" + verb.name) +
         section("NAME", fmt::format("vitrum\\-{} \\- {}\n", verb.name, roff(verb.summary))) +
         section("SYNOPSIS", fmt::format(".B vitrum {}\n{}[\\fIoptions\\fR]\n", verb.name,
                                         roff(usage_arguments(verb)))) +
         section("DESCRIPTION", roff(summary) + ".\n") +
         section("EXAMPLES", examples(verb.examples)) + section("OPTIONS", entries(verb.options)) +
         section("\"OPTIONS OF EVERY VERB\"", common_entries()) +
         section("\"SEE ALSO\"", ".BR vitrum (1)\nhas exit codes and the environment.\n");
}

int run(const Options& o) {
  const std::vector<Verb> verbs = all_verbs();
  if (!o.output.empty()) {
    if (!o.verb.empty()) fail_usage("--output writes the pages of all verbs; leave out {}", o.verb);
    ensure_directory(o.output);
    const OutputGuard guard(o.force);
    const auto write = [&](const std::string& name, const std::string& page) {
      const std::string path = fmt::format("{}/{}.1", o.output, name);
      guard.file(path, Content::kMan);
      write_file_atomic(path, page);
    };
    write("vitrum", main_page(verbs));
    for (const Verb& verb : verbs) write("vitrum-" + verb.name, verb_page(verb));
    return 0;
  }
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  const auto found = std::find(names.begin(), names.end(), o.verb);
  if (!o.verb.empty() && found == names.end())
    fail_usage("unknown verb '{}'{}", o.verb, did_you_mean(o.verb, names));
  print_out(o.verb.empty() ? main_page(verbs)
                           : verb_page(verbs[static_cast<size_t>(found - names.begin())]));
  return 0;
}

}  // namespace

Verb man_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "man",
          .summary = "print a manual page, to be read with man(1), or write all of them",
          .examples = {"man train | man -l -", "man --output /usr/local/share/man/man1"},
          .options = {{"VERB", &o->verb, "whose page; without one that of vitrum itself"},
                      {"--output", &o->output, "write every page into this folder", "DIR"},
                      force_option(o->force)},
          .run = [o](const CommonOptions&) { return run(*o); }};
}

}  // namespace vitrum
