// The only place that catches: one line on stderr, and an exit code that says what kind of thing
// went wrong.
#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "vitrum/cli/parse.h"
#include "vitrum/core/error.h"

namespace {

using namespace vitrum;

// A file opened while a standard stream is closed would get its number, and with it our remarks.
// What stands in can be neither read nor written, so that using it still fails.
void hold_closed_streams() {
  for (const int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

int run(const std::vector<std::string>& arguments) {
  const std::vector<Verb> verbs = {
      train_verb(), finetune_verb(), distill_verb(), classify_verb(), embed_verb(),
      eval_verb(),  explain_verb(),  report_verb(),  summary_verb(),  models_verb(),
      data_verb(),  forward_verb(),  convert_verb(), export_verb(),   download_verb(),
      bench_verb(), doctor_verb(),   version_verb()};
  CommonOptions common;
  const Invocation call = parse_command_line(arguments, verbs, common);
  if (call.version) return version_verb().run(common);
  if (call.help) {
    print_out(call.verb ? help_text(*call.verb) : overview(verbs));
    // A bare `vitrum` did not say what to do.
    return arguments.empty() ? static_cast<int>(ErrorKind::kUsage) : 0;
  }
  return call.verb->run(common);
}

}  // namespace

int main(int argc, char** argv) {
  hold_closed_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away must not end a training run
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is reported as a full disk is
  try {
    return run({argv + std::min(argc, 1), argv + argc});
  } catch (const Error& e) {
    print_error(e.what());
    return static_cast<int>(e.kind());
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
    return static_cast<int>(ErrorKind::kExhausted);
  } catch (const std::system_error& e) {  // such as a thread that finds no room for its stack
    const bool exhausted = e.code() == std::errc::not_enough_memory ||
                           e.code() == std::errc::resource_unavailable_try_again ||
                           e.code() == std::errc::no_space_on_device;
    print_error((exhausted ? "out of memory, threads or disk: " : "") + std::string(e.what()));
    return static_cast<int>(exhausted ? ErrorKind::kExhausted : ErrorKind::kFailed);
  } catch (const std::exception& e) {
    print_error(e.what());
    return static_cast<int>(ErrorKind::kFailed);
  }
}
