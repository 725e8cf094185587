// Where an error of a verb ends: one line on stderr, and an exit code that says what kind of thing
// went wrong.
#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <vector>

#include "vitrum/cli/failure.h"
#include "vitrum/cli/parse.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"

namespace {

using namespace vitrum;

// A file opened while a standard stream is closed would get its number, and with it our remarks.
// What stands in can be neither read nor written, so that using it still fails.
void hold_closed_streams() {
  for (const int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

int run(const std::vector<std::string>& arguments) {
  const std::vector<Verb> verbs = all_verbs();
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

// Told by the words themselves: what is wrong may be one of them.
bool asks_for_json(const std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  const auto given = [&](const std::string& word) {
    return std::find(arguments.begin(), end, word) != end;
  };
  const char* value = std::getenv("VITRUM_JSON");
  for (const std::string yes : {"1", "true", "yes", "on"})
    if (given("--json=" + yes) || (value && yes == value)) return true;
  return given("--json");
}

// A line for people, and an object for programs that asked for one. Returns the exit code.
int report(std::string_view message, ErrorKind kind, bool json) {
  const int code = static_cast<int>(kind);
  print_error(message);
  if (!json) return code;
  JsonWriter object;
  object.begin_object().key("error").begin_object();
  object.field("message", message).field("code", code).end_object().end_object();
  try {
    print_out(object.str() + "\n");
  } catch (const Error&) {  // it may be standard output that failed
  }
  return code;
}

}  // namespace

// What `vitrum` does, as a function: a wheel has it in its library (cmake/Wheel.cmake).
extern "C" int vitrum_main(int argc, char** argv) {
  hold_closed_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away must not end a training run
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is reported as a full disk is
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const bool json = asks_for_json(arguments);
  try {
    return run(arguments);
  } catch (const std::exception& e) {
    const Failure failure = failure_of(e);
    return report(failure.message, failure.kind, json);
  }
}
