#include "vitrum/train/predictions.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <string_view>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

constexpr std::string_view kHeader =
    "index,label,prediction,probability,second,second_probability,label_probability\n";
constexpr size_t kMostBytes = 100 * Evaluation::kMostSamples;
constexpr int kMostClasses = 100'000;

// Takes a number and the comma behind it off the front of `line`; the last number has none.
template <class T>
bool take(std::string_view& line, T& number) {
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (error != std::errc()) return false;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  if (line.starts_with(',')) line.remove_prefix(1);
  return true;
}

bool is_class(int n) { return n >= 0 && n < kMostClasses; }
bool is_share(double x) { return x >= 0 && x <= 1; }

bool parse(std::string_view line, SampleResult& s) {
  return take(line, s.index) && take(line, s.label) && take(line, s.guess) &&
         take(line, s.probability) && take(line, s.second) && take(line, s.second_probability) &&
         take(line, s.label_probability) && line.empty() && s.index >= 0 && is_class(s.label) &&
         is_class(s.guess) && is_class(s.second) && is_share(s.probability) &&
         is_share(s.second_probability) && is_share(s.label_probability);
}

}  // namespace

std::string predictions_path(const std::string& run) { return run + "/predictions.csv"; }

void save_predictions(const std::string& run, const std::vector<SampleResult>& samples) {
  std::string text(kHeader);
  for (const SampleResult& s : samples)
    text += fmt::format("{},{},{},{:.6g},{},{:.6g},{:.6g}\n", s.index, s.label, s.guess,
                        s.probability, s.second, s.second_probability, s.label_probability);
  write_file_atomic(predictions_path(run), text);
}

std::vector<SampleResult> load_predictions(const std::string& run) {
  const std::string path = predictions_path(run);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const std::string text = read_file(path, kMostBytes);
  std::string_view rest = text;
  std::vector<SampleResult> samples;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    if (end == rest.npos) break;
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (number == 1) continue;
    if (!parse(line, samples.emplace_back()))
      fail_input("'{}' line {}: expected index, classes and probabilities; remove the file", path,
                 number);
  }
  return samples;
}

}  // namespace vitrum
