#include "vitrum/train/metrics_log.h"

#include <fcntl.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"

namespace vitrum {
namespace {

std::string csv_path(const std::string& dir) { return dir + "/metrics.csv"; }
std::string jsonl_path(const std::string& dir) { return dir + "/metrics.jsonl"; }

std::string csv_header() {
  std::string line = "epoch,step";
  for (const MetricsField& f : kMetricsFields) line.append(",").append(f.name);
  return line + '\n';
}

std::string csv_line(const EpochMetrics& row) {
  std::string line = fmt::format("{},{}", row.epoch, row.step);
  for (const MetricsField& f : kMetricsFields)
    line += std::isnan(row.*f.member) ? "," : fmt::format(",{}", row.*f.member);
  return line + '\n';
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t comma; (comma = line.find(',')) != line.npos; line.remove_prefix(comma + 1))
    cells.push_back(line.substr(0, comma));
  cells.push_back(line);
  return cells;
}

template <class T>
bool parse(std::string_view cell, T& number) {
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
  return error == std::errc() && end == cell.data() + cell.size();
}

bool set_cell(EpochMetrics& row, std::string_view column, std::string_view cell) {
  if (column == "epoch") return parse(cell, row.epoch);
  if (column == "step") return parse(cell, row.step);
  for (const MetricsField& f : kMetricsFields)
    if (f.name == column) return cell.empty() || parse(cell, row.*f.member);
  return true;  // a column somebody added
}

std::optional<EpochMetrics> parse_row(const std::vector<std::string_view>& columns,
                                      std::string_view line) {
  const auto cells = split(line);
  if (cells.size() != columns.size()) return std::nullopt;
  EpochMetrics row;
  for (size_t i = 0; i < cells.size(); ++i)
    if (!set_cell(row, columns[i], cells[i])) return std::nullopt;
  return row;
}

// The next line without its newline; nothing when only a torn one is left.
std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  if (end == rest.npos) return std::nullopt;
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

void append_lines(const std::string& path, std::string_view lines) {
  OutputFile file(path, O_APPEND | O_CREAT);
  file.write(lines);
  file.sync();
  file.close();
}

}  // namespace

std::string to_json(const EpochMetrics& row) {
  JsonWriter json;
  json.begin_object().field("epoch", row.epoch).field("step", row.step);
  for (const MetricsField& f : kMetricsFields) json.field(f.name, row.*f.member);
  return json.end_object().str();
}

std::vector<EpochMetrics> MetricsLog::load(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::exists(csv_path(dir), ignored)) return {};
  const std::string text = read_file(csv_path(dir));
  std::string_view rest = text;
  const auto header = take_line(rest);
  if (!header) return {};
  const auto columns = split(*header);
  std::vector<EpochMetrics> rows;
  for (int number = 2; const auto line = take_line(rest); ++number) {
    if (const auto row = parse_row(columns, *line))
      rows.push_back(*row);
    else if (!rest.empty())  // the last line may be what a crash left
      fail_input(
          "'{}' line {}: expected {} numbers as in its first line; repair or remove the file",
          csv_path(dir), number, columns.size());
  }
  return rows;
}

MetricsLog::MetricsLog(const std::string& dir, int last_epoch) : dir_(dir) {
  ensure_directory(dir);
  if (last_epoch != kAfresh) rows_ = load(dir);
  std::erase_if(rows_, [&](const EpochMetrics& row) { return row.epoch > last_epoch; });
  // Both from the same rows: a kill may have come between the two appends.
  std::string csv = csv_header(), jsonl;
  for (const EpochMetrics& row : rows_) csv += csv_line(row), jsonl += to_json(row) + '\n';
  write_file_atomic(csv_path(dir), csv);
  write_file_atomic(jsonl_path(dir), jsonl);
}

void MetricsLog::append(std::span<const EpochMetrics> rows) {
  if (rows.empty()) return;
  std::string csv, jsonl;
  for (const EpochMetrics& row : rows) csv += csv_line(row), jsonl += to_json(row) + '\n';
  append_lines(csv_path(dir_), csv);
  append_lines(jsonl_path(dir_), jsonl);
  rows_.insert(rows_.end(), rows.begin(), rows.end());
}

}  // namespace vitrum
