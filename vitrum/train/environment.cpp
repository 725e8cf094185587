#include "vitrum/train/environment.h"

#include <fmt/chrono.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>

#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/sha.h"

#ifndef VITRUM_VERSION
#define VITRUM_VERSION "unknown"
#endif

namespace vitrum {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (const size_t colon = line.find(": "); colon != line.npos) return line.substr(colon + 2);
  return "unknown";
}

// Of a program, which may be of any size: one with debug information is of hundreds of megabytes.
std::string digest_of(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

std::string library_version() { return VITRUM_VERSION; }

std::string program_digest() { return digest_of("/proc/self/exe"); }

std::string library_digest(const std::string& file_name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t path = line.find('/'); path != line.npos && line.ends_with("/" + file_name))
      return digest_of(line.substr(path));
  return "";
}

std::string environment_json(const Backend& backend, int threads) {
  utsname system{};
  uname(&system);
  JsonWriter json;
  json.begin_object()
      .field("vitrum", VITRUM_VERSION)
      .field("compiler", "gcc " __VERSION__)
      .field("started", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))))
      .field("backend", backend.name())
      .field("threads", threads > 0 ? threads : available_cores())
      .field("processor", processor())
      .field("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine))
      .end_object();
  return json.str() + "\n";
}

}  // namespace vitrum
