#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <jpeglib.h>
#include <png.h>
#include <webp/decode.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/data/optional_codecs.h"
#include "vitrum/runtime/backends.h"

namespace vitrum {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Machine {
  std::string cpu = "unknown";
  std::set<std::string> flags;  // as Linux names them
  int cores = 1;
};

// Names that decide which kernels run; the processor has many more.
const std::vector<std::string> kFeatures = {
    "avx",      "avx2",     "fma",      "f16c",        "bmi2",        "avx512f",  "avx512bw",
    "avx512dq", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"};

Machine inspect() {
  Machine machine;
  machine.cores = available_cores();
  std::ifstream file("/proc/cpuinfo");
  for (std::string line;
       std::getline(file, line) && (machine.cpu == "unknown" || machine.flags.empty());) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) machine.cpu = line.substr(colon + 2);
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(colon + 2));
    for (std::string flag; words >> flag;) machine.flags.insert(flag);
  }
  return machine;
}

// What the CPU backend chose: VITRUM_ISA may cap it.
BackendStatus cpu_of(const std::vector<BackendStatus>& backends) {
  return *std::find_if(backends.begin(), backends.end(),
                       [](const BackendStatus& b) { return b.name == "cpu"; });
}

Pairs versions() {
  const auto dotted = [](int n, int base) {
    return fmt::format("{}.{}.{}", n / base / base, n / base % base, n % base);
  };
  return {{"vitrum", VITRUM_VERSION},
          {"compiler", "gcc " __VERSION__},
          {"glibc", gnu_get_libc_version()},
          {"fmt", dotted(FMT_VERSION, 100)},
          {"zlib", zlibVersion()},
          {"libpng", png_get_libpng_ver(nullptr)},
          {"libjpeg", fmt::format("{} (API)", JPEG_LIB_VERSION)},
          {"libwebp", dotted(WebPGetDecoderVersion(), 256)}};
}

std::string to_json(const Machine& m, const std::vector<BackendStatus>& backends) {
  const BackendStatus cpu = cpu_of(backends);
  JsonWriter json;
  json.begin_object()
      .field("cpu", m.cpu)
      .field("isa", cpu.isa)
      .field("bf16", cpu.bf16)
      .field("int8", cpu.int8)
      .field("threads", m.cores);
  json.key("features").begin_array();
  for (const std::string& name : kFeatures)
    if (m.flags.contains(name)) json.value(name);
  json.end_array().key("backends").begin_array();
  for (const BackendStatus& b : backends)
    json.begin_object()
        .field("name", b.name)
        .field("available", b.available)
        .field("detail", b.detail)
        .end_object();
  json.end_array().key("codecs").begin_array();
  for (const CodecStatus& c : optional_codecs())
    json.begin_object()
        .field("name", c.name)
        .field("available", c.available)
        .field("detail", c.detail)
        .end_object();
  json.end_array().key("versions").begin_object();
  for (const auto& [name, version] : versions()) json.field(name, version);
  return json.end_object().end_object().str() + "\n";
}

std::string to_text(const Machine& m, const std::vector<BackendStatus>& backends) {
  const BackendStatus cpu = cpu_of(backends);
  std::string features, out;
  for (const std::string& name : kFeatures)
    if (m.flags.contains(name)) features += (features.empty() ? "" : " ") + name;
  out += fmt::format("cpu        {}\nthreads    {}\nisa        {}\n", m.cpu, m.cores, cpu.isa);
  out += fmt::format("features   {}\n", features);
  out += fmt::format("bf16       {}: half the memory, {}\n", cpu.bf16,
                     cpu.bf16 == "emulated" ? "but not faster than f32"
                                            : "and products in instructions of their own");
  out += fmt::format(
      "int8       {}: a quarter of the memory, {}\n\nbackends\n", cpu.int8,
      cpu.int8 == "avx2" ? "about as fast as f32" : "and products in instructions of their own");
  for (const BackendStatus& b : backends)
    out += fmt::format("  {:<11}{:<5}{}\n", b.name, b.available ? "yes" : "no", b.detail);
  out += "\nimages beside JPEG, PNG, WebP, GIF and BMP\n";
  for (const CodecStatus& c : optional_codecs())
    out += fmt::format("  {:<11}{:<5}{}\n", c.name, c.available ? "yes" : "no", c.detail);
  out += "\nversions\n";
  for (const auto& [name, version] : versions()) out += fmt::format("  {:<11}{}\n", name, version);
  return out;
}

}  // namespace

Verb doctor_verb() {
  return {.name = "doctor",
          .summary = "say what this machine offers: processor, backends, libraries",
          .examples = {"doctor", "doctor --json"},
          .options = {},
          .run = [](const CommonOptions& common) {
            const Machine machine = inspect();
            const std::vector<BackendStatus> backends = backend_statuses();
            print_out(common.json ? to_json(machine, backends) : to_text(machine, backends));
            return 0;
          }};
}

}  // namespace vitrum
