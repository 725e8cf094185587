#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/runtime/backends.h"

namespace vitrum {

// Flushed at once: whoever reads JSON lines from a pipe sees each when it is made.
void print_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return;
  const int code = errno;
  if (code == EPIPE) return;
  const char* why = std::strerror(code);
  if (code == ENOSPC || code == EDQUOT || code == EFBIG)
    fail_exhausted("cannot write to standard output: {}", why);
  fail("cannot write to standard output: {}", why);
}

namespace {

std::string printable_lines(std::string_view text) {
  std::string out;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    out += printable(text.substr(0, end)) + "\n";
  return out + printable(text);
}

}  // namespace

void print_text(std::string_view text) { print_out(printable_lines(text)); }

void print_error(std::string_view text) {
  const std::string line = one_line(text);  // names of files may have anything in them
  const bool colour = use_colour(stderr);
  const std::string out =
      fmt::format("{}vitrum:{} {}\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", line);
  std::fwrite(out.data(), 1, out.size(), stderr);  // nothing to be done where this fails
}

void info(const CommonOptions& common, std::string_view text) {
  if (!common.quiet) std::fputs((printable_lines(text) + "\n").c_str(), stderr);
}

std::unique_ptr<Backend> open_backend(const CommonOptions& common) {
  return make_backend({.device = common.device, .threads = static_cast<int>(common.threads)});
}

DType compute_precision(const CommonOptions& common) {
  if (common.precision == "int8") return DType::kI8;
  if (common.precision == "fp8") return DType::kE4M3;
  return common.precision == "bf16" ? DType::kBF16 : DType::kF32;
}

DType compute_precision(const CommonOptions& common, const Backend& backend) {
  return common.precision == "auto" ? backend.usual_precision() : compute_precision(common);
}

std::string counted(int64_t n, std::string_view what) {
  const char* ending = n == 1 ? "" : what.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", with_commas(n), what, ending);
}

std::string with_commas(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

namespace {

template <size_t N>
std::string scaled(double x, double base, const std::array<const char*, N>& units) {
  size_t unit = 0;
  while (std::abs(x) >= base && unit + 1 < N) x /= base, ++unit;
  const int digits = unit == 0 ? 0 : std::abs(x) < 10 ? 2 : 1;
  return fmt::format("{:.{}f}{}{}", x, digits, *units[unit] ? " " : "", units[unit]);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, std::array{"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string human_count(double n) { return scaled(n, 1000, std::array{"", "k", "M", "G", "T"}); }

}  // namespace vitrum
