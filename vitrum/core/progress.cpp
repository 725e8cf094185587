#include "vitrum/core/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first of these that is set decides, as in every C program.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const auto value = environment(name); !value.empty())
      return value.find("UTF-8") != value.npos || value.find("utf8") != value.npos;
  return false;
}

std::string clock_text(double seconds) {
  // Beyond a year the estimate says nothing, and llround of an infinity is undefined.
  if (!(seconds >= 0 && seconds < 365 * 86400.0)) return "?";
  const long long s = std::llround(seconds);
  const long long h = s / 3600, m = s / 60 % 60;
  return h ? fmt::format("{}:{:02}:{:02}", h, m, s % 60) : fmt::format("{:02}:{:02}", m, s % 60);
}

// Three digits and a decimal unit, as tqdm scales: "4.50M", "150k", "7".
std::string scaled(double x) {
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (x >= 999.5 && unit + 1 < std::size(kUnits)) x /= 1000, ++unit;
  const int digits = unit == 0 || x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", x, digits, kUnits[unit]);
}

std::string count_text(const ProgressState& s, int64_t n) {
  return s.unit == ProgressUnit::kBytes ? scaled(static_cast<double>(n)) : std::to_string(n);
}

std::string rate_text(const ProgressState& s) {
  const double rate = s.rate;
  if (s.unit == ProgressUnit::kBytes) return (rate > 0 ? scaled(rate) : "?") + "B/s";
  if (!(rate > 0)) return "?it/s";
  return rate >= 1 ? fmt::format("{:5.2f}it/s", rate) : fmt::format("{:5.2f}s/it", 1 / rate);
}

double fraction_of(const ProgressState& s) {
  return std::clamp(static_cast<double>(s.done) / static_cast<double>(s.total), 0.0, 1.0);
}

// "45/100 [00:10<00:12,  4.50it/s, loss=0.31]", with fewer `parts` than three without the last
// ones.
std::string counts(const ProgressState& s, int parts = 3) {
  const bool known = s.total > 0;
  std::string text = count_text(s, s.done);
  text += known ? "/" + count_text(s, s.total) : s.unit == ProgressUnit::kBytes ? "B" : "it";
  if (parts < 1) return text;
  const double left = s.rate > 0 ? static_cast<double>(s.total - s.done) / s.rate : -1;
  text += " [" + clock_text(s.seconds) + (known ? "<" + clock_text(left) : "");
  if (parts >= 2) text += ", " + rate_text(s);
  if (parts >= 3 && !s.postfix.empty()) text += ", " + std::string(s.postfix);
  return text + "]";
}

std::string cells(double fraction, int width, bool unicode) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int steps = unicode ? 8 : 10;  // tqdm draws the partial ASCII cell as a digit
  const int filled = static_cast<int>(fraction * width * steps);
  const int part = filled % steps;
  std::string bar;
  for (int i = 0; i < filled / steps; ++i) bar += unicode ? "█" : "#";
  if (part > 0) bar += unicode ? std::string(kEighths[part]) : std::to_string(part);
  return bar + std::string(static_cast<size_t>(width - filled / steps - (part > 0)), ' ');
}

// Straight to the stream: fmt::print throws when nobody reads it any more, and progress is not
// worth that.
void put(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

std::string prefix(const ProgressState& s) {
  return s.label.empty() ? "" : std::string(s.label) + ": ";
}

}  // namespace

bool use_colour(std::FILE* stream) {
  return isatty(fileno(stream)) && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

int terminal_width(std::FILE* stream) {
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string progress_bar(const ProgressState& state, int width, bool unicode) {
  const double fraction = state.total > 0 ? fraction_of(state) : 0;
  // Rounded down: 100 % is said only at the end.
  const std::string left =
      prefix(state) +
      (state.total > 0 ? fmt::format("{:3}%|", static_cast<int>(100 * fraction)) : "");
  const std::string between = state.total > 0 ? "| " : "";
  const auto rest = [&](const std::string& right) {
    return width - columns(left) - columns(between) - columns(right);
  };
  // What a narrow terminal has no room for is left out, the least telling first.
  std::string right;
  for (int parts = 3; parts >= 0; --parts)
    if (right = counts(state, parts); rest(right) >= 0) break;
  const bool bar = state.total > 0 && rest(right) > 0;
  return fit_columns(left + (bar ? cells(fraction, rest(right), unicode) : "") + between + right,
                     width);
}

std::string progress_line(const ProgressState& s) {
  const std::string percent =
      s.total > 0 ? fmt::format("{}% ", static_cast<int>(100 * fraction_of(s))) : "";
  return printable(prefix(s) + percent + counts(s));
}

Progress::Progress(std::string label, int64_t total, bool quiet, int64_t initial, ProgressUnit unit)
    : label_(std::move(label)),
      total_(total),
      initial_(initial),
      done_(initial),
      unit_(unit),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      unicode_(locale_is_utf8()),
      start_(Clock::now()),
      next_draw_(terminal_ ? start_ : start_ + std::chrono::seconds(10)) {
  if (due()) draw();  // before the first step, which may take minutes
}

Progress::~Progress() {
  if (drawn_ && terminal_ && !finished_) put("\n");
}

bool Progress::due() const { return !quiet_ && !finished_ && Clock::now() >= next_draw_; }

void Progress::update(int64_t done, std::string_view postfix) {
  done_ = done;
  if (!quiet_ && !postfix.empty()) postfix_ = postfix;
  if (due()) draw();
}

void Progress::finish() {
  // In a log the last line is worth having only after others.
  if (!quiet_ && !finished_ && (terminal_ || drawn_)) draw();
  if (drawn_ && terminal_ && !finished_) put("\n");
  finished_ = true;
}

void Progress::clear() {
  if (!drawn_ || !terminal_ || finished_) return;
  put(fmt::format("\r{:{}}\r", "", std::max(1, terminal_width(stderr) - 1)));
  drawn_ = false;
  next_draw_ = Clock::now();
}

ProgressState Progress::state() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_ - initial_) / seconds : 0;
  return {label_, postfix_, done_, total_, seconds, rate, unit_};
}

void Progress::draw() {
  drawn_ = true;
  next_draw_ =
      Clock::now() + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10));
  if (!terminal_) return put(progress_line(state()) + "\n");
  // The last column stays empty: some terminals wrap as soon as it is written.
  const int width = std::max(1, terminal_width(stderr) - 1);
  const std::string line = progress_bar(state(), width, unicode_);
  const auto padding = static_cast<size_t>(std::max(0, width - columns(line)));
  put("\r" + line + std::string(padding, ' '));
}

}  // namespace vitrum
