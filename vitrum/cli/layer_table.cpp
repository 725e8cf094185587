#include "vitrum/cli/layer_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/progress.h"

namespace vitrum {
namespace {

std::string dims(const Shape& shape) { return join(std::span(shape.begin(), shape.end()), "x"); }

std::string leaf(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Cells see the row and the first one, the whole.
struct Column {
  const char* name;
  const char* title;
  bool right;
  std::string (*cell)(const LayerSummary& row, const LayerSummary& whole);
};

std::string tree_name(const LayerSummary& row, const LayerSummary&) {
  const std::string own = row.name.empty() ? "(model)" : row.depth == 0 ? row.name : leaf(row.name);
  return std::string(static_cast<size_t>(2 * row.depth), ' ') + own;
}

std::string trains(const LayerSummary& row, const LayerSummary&) {
  if (row.parameters == 0) return "-";
  return row.trainable == row.parameters ? "yes" : row.trainable == 0 ? "no" : "partly";
}

std::string percent(const LayerSummary& row, const LayerSummary& whole) {
  if (row.parameters == 0) return "-";
  return fmt::format(
      "{:.2f}", 100 * static_cast<double>(row.parameters) / static_cast<double>(whole.parameters));
}

const std::vector<Column> kColumns = {
    {"name", "layer", false, tree_name},
    {"type", "type", false, [](const LayerSummary& r, const LayerSummary&) { return r.type; }},
    {"input", "input", false,
     [](const LayerSummary& r, const LayerSummary&) { return dims(r.input); }},
    {"output", "output", false,
     [](const LayerSummary& r, const LayerSummary&) { return dims(r.output); }},
    {"kernel", "weight", false,
     [](const LayerSummary& r, const LayerSummary&) {
       return r.weight.rank() > 0 ? dims(r.weight) : "-";
     }},
    {"parameters", "parameters", true,
     [](const LayerSummary& r, const LayerSummary&) {
       return r.parameters ? with_commas(r.parameters) : "-";
     }},
    {"percent", "%", true, percent},
    {"trainable", "train", false, trains},
    {"macs", "MACs", true,
     [](const LayerSummary& r, const LayerSummary&) {
       return r.macs ? human_count(static_cast<double>(r.macs)) : "-";
     }},
    {"memory", "results", true,
     [](const LayerSummary& r, const LayerSummary&) { return human_bytes(4 * r.results); }},
};

std::vector<Column> chosen_columns(const std::string& list) {
  std::vector<Column> chosen;
  std::vector<std::string> names;
  for (const Column& column : kColumns) names.emplace_back(column.name);
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, comma - at);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      fail_usage("--columns: unknown column '{}'{}", name, did_you_mean(name, names));
    chosen.push_back(kColumns[static_cast<size_t>(found - names.begin())]);
    at = comma + 1;
  }
  return chosen;
}

std::vector<size_t> widths(const std::vector<Column>& columns,
                           const std::vector<LayerSummary>& rows) {
  std::vector<size_t> all;
  for (const Column& column : columns) {
    size_t width = std::string_view(column.title).size();
    for (const LayerSummary& row : rows) width = std::max(width, column.cell(row, rows[0]).size());
    all.push_back(width);
  }
  return all;
}

// All columns, less those that can be missed first where the terminal is too narrow.
std::vector<Column> fitting_columns(const std::vector<LayerSummary>& rows) {
  std::vector<Column> columns = kColumns;
  for (const char* dispensable : {"kernel", "memory", "percent", "input", "trainable", "type"}) {
    size_t total = 2 * (columns.size() - 1);
    for (size_t width : widths(columns, rows)) total += width;
    if (total <= static_cast<size_t>(terminal_width(stdout))) break;
    std::erase_if(columns,
                  [&](const Column& c) { return std::string_view(c.name) == dispensable; });
  }
  return columns;
}

// One past the last row below rows[at].
size_t end_of(const std::vector<LayerSummary>& rows, size_t at) {
  size_t end = at + 1;
  while (end < rows.size() && rows[end].depth > rows[at].depth) ++end;
  return end;
}

// Whether the `count` rows from `a` and from `b` differ in nothing but the names of the first two.
bool alike(const std::vector<LayerSummary>& rows, size_t a, size_t b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const LayerSummary &x = rows[a + i], &y = rows[b + i];
    const bool same = x.type == y.type && x.depth == y.depth && x.input == y.input &&
                      x.output == y.output && x.parameters == y.parameters &&
                      x.trainable == y.trainable && x.macs == y.macs &&
                      (i == 0 || leaf(x.name) == leaf(y.name));
    if (!same) return false;
  }
  return true;
}

}  // namespace

std::string layer_columns() {
  std::string names;
  for (const Column& column : kColumns) names.append(names.empty() ? "" : ", ").append(column.name);
  return names;
}

std::vector<LayerSummary> fold_repeats(const std::vector<LayerSummary>& rows) {
  std::vector<LayerSummary> folded;
  for (size_t at = 0; at < rows.size();) {
    const size_t end = end_of(rows, at), count = end - at;
    size_t next = end, like = 0;
    while (!rows[at].leaf && next < rows.size() && end_of(rows, next) - next == count &&
           alike(rows, at, next, count))
      next += count, ++like;
    if (like < 2) {  // one twin is shown as it is
      folded.push_back(rows[at++]);
      continue;
    }
    const std::vector<LayerSummary> first(rows.begin() + static_cast<std::ptrdiff_t>(at),
                                          rows.begin() + static_cast<std::ptrdiff_t>(end));
    folded.push_back(first[0]);
    const auto below = fold_repeats({first.begin() + 1, first.end()});
    folded.insert(folded.end(), below.begin(), below.end());
    LayerSummary rest = rows[end];
    const auto times = static_cast<int64_t>(like);
    rest.name += " to " + leaf(rows[next - count].name);
    rest.type = fmt::format("{} x {}", like, rest.type);
    rest.parameters *= times, rest.trainable *= times, rest.macs *= times, rest.results *= times;
    folded.push_back(std::move(rest));
    at = next;
  }
  return folded;
}

std::string layer_table(const std::vector<LayerSummary>& rows, const std::string& columns) {
  const std::vector<Column> shown =
      columns.empty() ? fitting_columns(rows) : chosen_columns(columns);
  const std::vector<size_t> width = widths(shown, rows);
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t i = 0; i < shown.size(); ++i) {
      const std::string word = cell(i), space(width[i] - word.size(), ' ');
      text += shown[i].right ? space + word : word + space;
      text += "  ";
    }
    return text.erase(text.find_last_not_of(' ') + 1) + "\n";
  };
  std::string out = line([&](size_t i) { return std::string(shown[i].title); });
  out += line([&](size_t i) { return std::string(width[i], '-'); });
  for (const LayerSummary& row : rows)
    out += line([&](size_t i) { return shown[i].cell(row, rows[0]); });
  return out;
}

}  // namespace vitrum
