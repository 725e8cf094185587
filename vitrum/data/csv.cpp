#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/class_numbers.h"
#include "vitrum/data/file_dataset.h"
#include "vitrum/data/folder.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

struct Row {
  std::string file, label, split;
};

// Fields may be quoted; a quote inside of one is doubled.
std::vector<std::string> split_fields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

bool is_heading(const std::vector<std::string>& fields) {
  constexpr std::string_view kFirst[] = {"file", "filename", "image", "path"};
  return std::find(std::begin(kFirst), std::end(kFirst), fields[0]) != std::end(kFirst);
}

std::string canonical_split(const std::string& split, const std::string& path, size_t line) {
  if (split == "train" || split == "test") return split;
  if (split == "val" || split == "valid" || split == "validation") return "test";
  fail_input("{}:{}: split '{}'; expected train or test", path, line, shown(split));
}

// All rows have the same number of fields, 2 or 3.
std::vector<Row> read_rows(const std::string& path) {
  const std::vector<uint8_t> bytes = read_bytes(path);
  const std::string_view bom = "\xef\xbb\xbf";
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(bom)) text.remove_prefix(bom.size());
  std::vector<Row> rows;
  size_t columns = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto fields = split_fields(std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (columns == 0) columns = fields.size();
    if (fields.size() != columns || columns < 2 || columns > 3) {
      fail_input("{}:{}: {} fields; expected file,class or file,class,split on every line", path,
                 number, fields.size());
    }
    if (number == 1 && is_heading(fields)) continue;
    if (fields[0].empty() || fields[1].empty()) fail_input("{}:{}: an empty field", path, number);
    if (!is_utf8(fields[1]))
      fail_input("{}:{}: the class '{}' is not UTF-8; save the list as UTF-8", path, number,
                 shown(printable(fields[1])));
    rows.push_back(
        {fields[0], fields[1], columns == 3 ? canonical_split(fields[2], path, number) : ""});
  }
  if (rows.empty()) fail_input("{}: lists no images", path);
  return rows;
}

// Numbered over all rows, so that both splits agree.
std::map<std::string, int> classes_of(std::span<const Row> rows) {
  std::set<std::string> labels;
  for (const Row& row : rows) labels.insert(row.label);
  return number_classes(labels);
}

}  // namespace

bool csv_has_splits(const std::string& path) { return !read_rows(path).front().split.empty(); }

std::unique_ptr<Dataset> open_csv(const std::string& path, const std::string& split,
                                  const DecodeOptions& options) {
  const std::vector<Row> rows = read_rows(path);
  const std::map<std::string, int> labels = classes_of(rows);
  const fs::path folder = fs::path(path).parent_path();
  std::vector<LabelledFile> files;
  for (const Row& row : rows) {
    if (row.split == split) files.push_back({(folder / row.file).string(), labels.at(row.label)});
  }
  if (files.empty()) fail_input("{}: no line of split '{}'", path, split);
  return std::make_unique<FileDataset>(std::move(files), names_of(labels), options);
}

}  // namespace vitrum
