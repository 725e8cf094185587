#include "vitrum/report/html.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>

#include "vitrum/core/base64.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/sha.h"
#include "vitrum/report/compare.h"
#include "vitrum/report/page.h"
#include "vitrum/train/picture.h"

#ifndef VITRUM_VERSION
#define VITRUM_VERSION "unknown"
#endif

namespace vitrum {
namespace {

constexpr std::array kStates = {"empty", "running", "stopped", "finished"};  // of RunState

// Seven digits are more than a curve or a legend shows.
void put_number(JsonWriter& json, double x) {
  std::isfinite(x) ? json.raw(fmt::format("{:.7g}", x)) : json.null();
}

template <class Numbers>
void put_numbers(JsonWriter& json, const Numbers& numbers) {
  json.begin_array();
  for (const int64_t n : numbers) json.value(n);
  json.end_array();
}

void put_metrics(JsonWriter& json, const std::vector<EpochMetrics>& rows) {
  json.key("metrics").begin_object().key("epoch").begin_array();
  for (const EpochMetrics& row : rows) json.value(row.epoch);
  json.end_array();
  for (const MetricsField& field : kMetricsFields) {
    json.key(field.name).begin_array();
    for (const EpochMetrics& row : rows) put_number(json, row.*field.member);
    json.end_array();
  }
  json.end_object();
}

// Images and how many of them were right, by class; nothing where nothing was evaluated.
void put_totals(JsonWriter& json, const ReportRun& run, const Confusion& cells) {
  struct Total {
    int64_t images = 0, right = 0;
  };
  std::vector<Total> totals(cells.empty() ? 0 : run.classes.size());
  int64_t images = 0;
  for (const ConfusionCell& c : cells) {
    Total& total = totals[static_cast<size_t>(c.truth)];
    total.images += c.count, images += c.count;
    if (c.truth == c.guess) total.right += c.count;
  }
  json.field("test_images", images).field("train_images", run.train_images);
  json.key("totals").begin_array();
  for (const Total& t : totals) json.begin_array().value(t.images).value(t.right).end_array();
  json.end_array();
}

// [true, predicted, images]: all that occurred, or of more classes than a page has room for the
// pairs that were mistaken most often.
void put_confusion(JsonWriter& json, const ReportRun& run) {
  constexpr size_t kMostClasses = 200, kMostPairs = 100;
  Confusion cells = confusion_of(run);
  put_totals(json, run, cells);
  const auto right = [](const ConfusionCell& c) { return c.truth == c.guess; };
  const bool all = run.classes.size() <= kMostClasses;
  json.field("every_pair", all).field("pairs", std::ranges::count_if(cells, std::not_fn(right)));
  if (!all) {
    std::erase_if(cells, right);
    std::ranges::stable_sort(cells, std::greater(), &ConfusionCell::count);
    cells.resize(std::min(cells.size(), kMostPairs));
  }
  json.key("confusion").begin_array();
  for (const ConfusionCell& c : cells)
    json.begin_array().value(c.truth).value(c.guess).value(c.count).end_array();
  json.end_array();
}

// Runs by the images they were tested on, and where each run has the classes that several have.
void put_comparison(JsonWriter& json, std::span<const ReportRun> runs) {
  const Comparison found = compare_runs(runs);
  json.key("compare").begin_object().key("groups").begin_array();
  for (const std::vector<int64_t>& group : found.groups) put_numbers(json, group);
  json.end_array().key("classes").begin_array();
  for (const std::vector<int64_t>& at : found.classes) {
    json.begin_array();
    for (const int64_t i : at) i < 0 ? json.null() : json.value(i);
    json.end_array();
  }
  json.end_array().end_object();
}

void put_picture(JsonWriter& json, const char* key, const std::string& url) {
  json.key(key);
  url.empty() ? json.null() : json.value(url);
}

void put_tiles(JsonWriter& json, const char* key, const std::vector<ReportTile>& tiles) {
  json.key(key).begin_array();
  for (const ReportTile& t : tiles) {
    const SampleResult& r = t.result;
    json.begin_object().field("index", r.index).field("name", t.name).field("label", r.label);
    json.field("guess", r.guess).field("second", r.second).field("small", t.small);
    json.key("p"), put_number(json, r.probability);
    json.key("p2"), put_number(json, r.second_probability);
    json.key("own"), put_number(json, r.label_probability);
    put_picture(json, "image", t.image), put_picture(json, "overlay", t.overlay);
    json.end_object();
  }
  json.end_array();
}

void put_model(JsonWriter& json, const std::optional<ReportModel>& model) {
  json.key("model");
  if (!model) return void(json.null());
  const LayerSummary& all = model->layers[0];
  json.begin_object().field("name", model->name).field("parameters", all.parameters);
  json.field("macs", all.macs).key("size");
  put_numbers(json, model->image_size);
  json.key("layers").begin_array();
  for (const LayerSummary& layer : model->layers) {
    json.begin_array().value(layer.name).value(layer.type).value(layer.depth);
    put_numbers(json, layer.output);
    json.value(layer.parameters).value(layer.macs).end_array();
  }
  json.end_array().end_object();
}

void put_texts(JsonWriter& json, const char* key, const std::vector<std::string>& texts) {
  json.key(key).begin_array();
  for (const std::string& text : texts) json.value(text);
  json.end_array();
}

void put_run(JsonWriter& json, const ReportRun& run) {
  json.begin_object().field("name", run.name).field("path", run.path);
  json.field("state", kStates[static_cast<size_t>(run.state)]).field("epochs", run.epochs);
  put_metrics(json, run.metrics);
  json.key("recipe").begin_array();
  for (const auto& [key, value] : run.recipe)
    json.begin_array().value(key).value(value).end_array();
  json.end_array().field("environment", run.environment);
  put_texts(json, "classes", run.classes), put_texts(json, "notes", run.notes);
  put_confusion(json, run);
  put_tiles(json, "mistakes", run.mistakes), put_tiles(json, "uncertain", run.uncertain);
  put_tiles(json, "confused", run.confused), put_tiles(json, "augmented", run.augmented);
  put_picture(
      json, "reconstructions",
      run.reconstructions.empty() ? "" : "data:image/png;base64," + base64(run.reconstructions));
  put_model(json, run.model);
  json.end_object();
}

// '<' occurs in JSON only inside of strings, and there it must not begin a tag.
std::string inert(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) c == '<' ? out += "\\u003c" : out += c;
  return out;
}

// What the browser lets run: this script and nothing else.
std::string source_hash(std::string_view script) {
  const std::string hex = sha256(script);
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return "'sha256-" + base64(bytes) + "'";
}

}  // namespace

std::string report_html(std::span<const ReportRun> runs, const std::vector<std::string>& plots) {
  JsonWriter json;
  json.begin_object().field("version", VITRUM_VERSION);
  json.field("made", fmt::format("{:%F %T} UTC", fmt::gmtime(std::time(nullptr))));
  put_texts(json, "plots", plots);
  json.key("runs").begin_array();
  for (const ReportRun& run : runs) put_run(json, run);
  json.end_array();
  if (runs.size() > 1) put_comparison(json, runs);
  json.end_object();
  const std::string title =
      runs.size() == 1 ? runs[0].name : fmt::format("{} runs compared", runs.size());
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; "
      "style-src 'unsafe-inline'; script-src {}\">\n"
      "<title>{} · Vitrum</title>\n<style>\n{}</style>\n</head>\n<body>\n"
      "<noscript>This page draws itself with a script of its own; switch scripts on to see it."
      "</noscript>\n<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<script>{}</script>\n</body>\n</html>\n",
      source_hash(kPageScript), xml_escape(title), kPageStyle, inert(json.str()), kPageScript);
}

}  // namespace vitrum
