#include "vitrum/cli/trace_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace vitrum {
namespace {

double tera(int64_t count, double seconds) {
  return seconds > 0 ? 1e-12 * static_cast<double>(count) / seconds : 0;
}

}  // namespace

void TraceTable::add(const Program::Step& step, double seconds) {
  const auto present = std::find_if(step.out.begin(), step.out.end(),
                                    [](const TensorView& v) { return static_cast<bool>(v); });
  const std::string shape = present == step.out.end() ? "" : present->shape.str();
  Sum& sum = kinds_[{fmt::format("{} {}", step.op, shape), step.kernel}];
  ++sum.count, sum.bytes += step.bytes, sum.macs += step.macs, sum.seconds += seconds;
  total_ += seconds;
}

std::vector<std::pair<TraceTable::Kind, TraceTable::Sum>> TraceTable::sorted() const {
  std::vector<std::pair<Kind, Sum>> rows(kinds_.begin(), kinds_.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  return rows;
}

std::string TraceTable::text() const {
  const auto rows = sorted();
  const bool named = std::any_of(rows.begin(), rows.end(),
                                 [](const auto& row) { return !row.first.second.empty(); });
  const auto kernel = [&](const std::string& name) {
    return named ? fmt::format("{:<26}", name) : std::string();
  };
  std::string out = fmt::format("\n{:<38}{}{:>6}{:>10}{:>7}{:>9}{:>9}\n", "op and first output",
                                kernel("kernel"), "times", "ms", "share", "TFLOP/s", "TB/s");
  for (const auto& [kind, sum] : rows)
    out += fmt::format("{:<38}{}{:>6}{:>10.3f}{:>6.1f}%{:>9.2f}{:>9.3f}\n", kind.first,
                       kernel(kind.second), sum.count, 1e3 * sum.seconds,
                       total_ > 0 ? 100 * sum.seconds / total_ : 0, tera(2 * sum.macs, sum.seconds),
                       tera(sum.bytes, sum.seconds));
  return out + fmt::format("{:<44}{}{:>10.3f}\n", "kernel by kernel", kernel(""), 1e3 * total_);
}

void TraceTable::to_json(JsonWriter& json) const {
  json.begin_array();
  for (const auto& [kind, sum] : sorted())
    json.begin_object()
        .field("kernel", kind.first)
        .field("implementation", kind.second)
        .field("times", sum.count)
        .field("milliseconds", 1e3 * sum.seconds)
        .field("macs", sum.macs)
        .field("bytes", sum.bytes)
        .end_object();
  json.end_array();
}

}  // namespace vitrum
