// The HTML page of a run: what is in it, what cannot get out of it, and runs that are half there.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/process.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/base64.h"
#include "vitrum/core/files.h"
#include "vitrum/core/philox.h"
#include "vitrum/data/encode_webp.h"
#include "vitrum/data/memory_dataset.h"
#include "vitrum/report/compare.h"
#include "vitrum/report/html.h"
#include "vitrum/report/live_report.h"
#include "vitrum/report/page.h"
#include "vitrum/report/plots.h"
#include "vitrum/report/reconstructions.h"
#include "vitrum/train/predictions.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::read_text;
using test::TinyRun;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What the page's script reads; fails where the page is not the frame we write.
json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  EXPECT_THAT(html, StartsWith("<!doctype html>"));
  EXPECT_EQ(count(html, open), 1u);
  EXPECT_EQ(count(html, "<script"), 2u) << "the data and the page's own script";
  EXPECT_EQ(count(html, "</script>"), 2u);
  for (const char* tag : {"html", "head", "body", "title", "style", "noscript"})
    EXPECT_EQ(count(html, "</" + std::string(tag) + ">"), 1u) << tag;
  const size_t from = html.find(open) + open.size();
  return json::parse(html.substr(from, html.find("</script>", from) - from));
}

json page_of(const std::string& path) {
  ReportRun run = read_run(path);
  add_pictures(run);
  return data_of(report_html({&run, 1}, {}))["runs"][0];
}

// Two trained epochs are enough for every part of a page.
class Report : public testing::Test {
 protected:
  void SetUp() override {
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 2;
    Trainer(recipe, tiny_.options("run")).run();
  }
  std::string run() const { return tiny_ / "run"; }
  Finished report(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "report");
    return test::run_vitrum(arguments, tiny_ / "output");
  }

  TinyRun tiny_;
};

TEST_F(Report, HoldsWhatTheRunMeasured) {
  const json page = page_of(run());
  const auto rows = MetricsLog::load(run());
  ASSERT_EQ(rows.size(), 2u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(page["metrics"]["epoch"][i], rows[i].epoch);
    EXPECT_NEAR(page["metrics"]["train_loss"][i].get<double>(), rows[i].train_loss, 1e-6);
    EXPECT_NEAR(page["metrics"]["test_acc"][i].get<double>(), rows[i].test_acc, 1e-6);
    EXPECT_NEAR(page["metrics"]["lr"][i].get<double>(), rows[i].lr, 1e-9);
  }
  EXPECT_EQ(page["state"], "finished");
  EXPECT_EQ(page["classes"].size(), 10u);
  int64_t images = 0, right = 0;
  for (const json& cell : page["confusion"]) {
    images += cell[2].get<int64_t>();
    if (cell[0] == cell[1]) right += cell[2].get<int64_t>();
  }
  EXPECT_EQ(images, TinyRun::kTest);
  EXPECT_NEAR(static_cast<double>(right) / static_cast<double>(images), rows[1].test_acc, 1e-9);
  EXPECT_EQ(page["augmented"].size(), 24u);
  EXPECT_EQ(page["model"]["layers"][0][4], page["model"]["parameters"]);
  EXPECT_THAT(page["environment"].get<std::string>(), HasSubstr("\"backend\""));
  EXPECT_THAT(page["notes"], IsEmpty());
}

TEST_F(Report, WorstMistakesComeFirst) {
  const json page = page_of(run());
  ASSERT_FALSE(page["mistakes"].empty());
  double last = 1;
  for (const json& tile : page["mistakes"]) {
    EXPECT_NE(tile["label"], tile["guess"]);
    EXPECT_LE(tile["p"].get<double>(), last);
    last = tile["p"];
    EXPECT_THAT(tile["image"].get<std::string>(), StartsWith("data:image/png;base64,"));
    EXPECT_TRUE(tile["overlay"].is_null());
  }
  last = 0;
  for (const json& tile : page["uncertain"]) {
    const double margin = tile["p"].get<double>() - tile["p2"].get<double>();
    EXPECT_GE(margin, last - 1e-6);
    last = margin;
  }
}

TEST_F(Report, OverlaysStandBesideTheImages) {
  ReportRun run = read_run(this->run());
  add_pictures(run, [](const Image& image, const SampleResult&) { return image; });
  ASSERT_FALSE(run.uncertain.empty());
  EXPECT_EQ(run.uncertain[0].overlay, run.uncertain[0].image);
  EXPECT_EQ(data_of(report_html({&run, 1}, {}))["runs"][0]["uncertain"][0]["overlay"],
            run.uncertain[0].image);
}

TEST_F(Report, AttentionIsDrawnOverTheImages) {
  EXPECT_EQ(report({run()}).code, 0);
  const json page = data_of(read_text(run() + "/report.html"))["runs"][0];
  ASSERT_FALSE(page["mistakes"].empty());
  for (const json& tile : page["mistakes"])
    EXPECT_THAT(tile["overlay"].get<std::string>(), StartsWith("data:image/webp;base64,"));
}

TEST_F(Report, NamesAreInert) {
  const std::string evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>";
  ReportRun run = read_run(this->run());
  run.name = run.path = evil;
  run.classes[0] = evil;
  run.recipe.emplace_back("data", "\"" + evil + "\"");
  run.environment = evil, run.notes = {evil};
  run.mistakes.push_back({.name = evil});
  const std::string html = report_html({&run, 1}, {evil});
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, HasSubstr("<title>&lt;/script&gt;&lt;script&gt;"));
  EXPECT_THAT(html, HasSubstr("script-src 'sha256-"));
  EXPECT_EQ(data_of(html)["runs"][0]["name"], evil);
}

TEST_F(Report, ComparesRuns) {
  fs::create_directory(tiny_ / "other");
  fs::copy(run(), tiny_ / "other/run", fs::copy_options::recursive);
  const Finished done =
      report({run(), tiny_ / "other/run", "--output", tiny_ / "page/both.html", "--json"});
  EXPECT_EQ(done.code, 0) << done.err;
  const json answer = json::parse(done.out);
  EXPECT_EQ(answer["output"], tiny_ / "page/both.html");
  const json page = data_of(read_text(tiny_ / "page/both.html"));
  EXPECT_EQ(page["runs"][0]["name"], run()) << "two runs of one name are known by their paths";
  EXPECT_EQ(page["runs"][1]["name"], tiny_ / "other/run");
  for (const json& plot : answer["plots"])
    EXPECT_TRUE(fs::exists(tiny_ / ("page/" + plot.get<std::string>()))) << plot;
  EXPECT_THAT(read_text(tiny_ / "page/both-loss.png"), StartsWith("\x89PNG"));
  EXPECT_THAT(read_text(tiny_ / "page/both-confusion-2.svg"), StartsWith("<svg"));
}

TEST_F(Report, KnowsWhetherTheTestImagesAreTheSame) {
  const auto evaluated = [&](const char* out, auto change) {
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 1;
    change(recipe);
    Trainer(recipe, tiny_.options(out)).run();
    ReportRun run = read_run(tiny_ / out);
    add_pictures(run);
    return run.evaluated;
  };
  ReportRun first = read_run(run());
  const std::string unopened = first.evaluated;
  add_pictures(first);
  EXPECT_NE(first.evaluated, unopened) << "pixels count where the data is there";
  EXPECT_EQ(first.train_images, TinyRun::kTrain);
  EXPECT_EQ(evaluated("faster", [](Recipe& r) { r.lr *= 2; }), first.evaluated);
  EXPECT_NE(evaluated("part", [](Recipe& r) { r.subset = 12; }), first.evaluated);
  EXPECT_NE(evaluated("held", [](Recipe& r) { r.holdout = 0.2; }), first.evaluated);
  std::string images = read_text(tiny_ / "t10k-images-idx3-ubyte");
  for (size_t i = 16; i < images.size(); ++i) images[i] = static_cast<char>(images[i] + 1);
  write_file_atomic(tiny_ / "t10k-images-idx3-ubyte", images);
  EXPECT_NE(evaluated("other pixels", [](Recipe&) {}), first.evaluated);
}

TEST_F(Report, HalfWrittenRunsShowWhatIsThere) {
  for (const char* part : {"env.json", "predictions.csv"}) fs::remove(run() + "/" + part);
  for (const char* part : {"last", "best"}) fs::remove_all(run() + "/" + part);
  const std::string metrics = read_text(run() + "/metrics.csv");
  write_file_atomic(run() + "/metrics.csv", metrics.substr(0, metrics.size() - 9));  // torn
  json page = page_of(run());
  EXPECT_EQ(page["metrics"]["epoch"].size(), 1u);
  EXPECT_EQ(page["state"], "stopped");
  EXPECT_TRUE(page["model"].is_null());
  EXPECT_EQ(page["notes"].size(), 1u) << page["notes"];  // env.json
  fs::remove(run() + "/metrics.csv");
  EXPECT_EQ(page_of(run())["state"], "empty");
  EXPECT_EQ(report({run()}).code, 0);
  EXPECT_TRUE(fs::exists(run() + "/report.html"));
}

TEST_F(Report, DataThatIsGoneIsANote) {
  for (const auto& entry : fs::directory_iterator(tiny_ / ""))
    if (entry.path().string().ends_with("ubyte")) fs::remove(entry.path());
  const json page = page_of(run());
  ASSERT_EQ(page["notes"].size(), 1u);
  EXPECT_THAT(page["notes"][0].get<std::string>(), StartsWith("No pictures, the data"));
  EXPECT_FALSE(page["confusion"].empty());
}

TEST_F(Report, MistakesOfUsersAreOneLine) {
  const auto expect = [&](int code, std::vector<std::string> arguments, const std::string& part) {
    const Finished done = report(std::move(arguments));
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_EQ(count(done.err, "\n"), 1u) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
  };
  expect(2, {}, "report needs RUN");
  expect(3, {tiny_ / "nowhere"}, "no such run directory");
  expect(3, {tiny_ / "model"}, "not a run directory");
  expect(3, {run(), "--output", "/proc/vitrum/report.html"}, "/proc/vitrum");
  write_file_atomic(run() + "/predictions.csv", "index,label\n1,2,x\n3,4,5\n");
  EXPECT_THAT(page_of(run())["notes"][0].get<std::string>(), HasSubstr("predictions.csv' line 2"));
  write_file_atomic(run() + "/metrics.csv", "epoch,step\n1,2\nx,y\n3,4\n");
  expect(3, {run()}, "metrics.csv' line 3");
  if (geteuid() == 0) return;  // root may write anywhere
  fs::permissions(run(), fs::perms::owner_read | fs::perms::owner_exec);
  expect(3, {run()}, run());
  fs::permissions(run(), fs::perms::owner_all);
}

TEST_F(Report, TrainingWritesItAndKeepsItUpToDate) {
  Recipe recipe = tiny_.recipe();
  Trainer trainer(recipe, tiny_.options("live"));
  LiveReport live(trainer);
  std::vector<std::string> states;
  trainer.run({.saved = [&] {
    live.update();
    states.push_back(data_of(read_text(report_path(tiny_ / "live")))["runs"][0]["state"]);
  }});
  EXPECT_THAT(states, AllOf(Not(IsEmpty()), Each("running")));
  live.finish(RunState::kFinished);
  const json page = data_of(read_text(report_path(tiny_ / "live")))["runs"][0];
  EXPECT_EQ(page["state"], "finished");
  EXPECT_EQ(page["metrics"]["epoch"].size(), 3u);
  EXPECT_EQ(page["augmented"].size(), 24u);
}

// Classes with their images, all of them recognised.
ReportRun run_of(std::vector<std::string> classes, std::string evaluated) {
  ReportRun run{.name = "run", .classes = std::move(classes), .evaluated = std::move(evaluated)};
  for (size_t c = 0; c < run.classes.size(); ++c)
    run.samples.push_back({.index = static_cast<int64_t>(c),
                           .label = static_cast<int>(c),
                           .guess = static_cast<int>(c)});
  return run;
}

TEST(ReportComparison, MatchesClassesByName) {
  const std::vector<ReportRun> runs = {run_of({"cat", "dog", "crane", "crane"}, "x"),
                                       run_of({"dog", "horse", "crane", "cat"}, "y"),
                                       run_of({"crane", "crane", "dog"}, "x")};
  const json compare = data_of(report_html(runs, {}))["compare"];
  EXPECT_EQ(compare["groups"], json::parse("[[0, 2], [1]]"));
  EXPECT_EQ(compare["classes"], json::parse("[[0, 3, null], [1, 0, 2], [2, 2, 0], [3, null, 1]]"));
  EXPECT_FALSE(data_of(report_html({runs.data(), 1}, {})).contains("compare"));
}

TEST(ReportComparison, RunsWithoutACommonClass) {
  std::vector<ReportRun> runs = {run_of({"shirt", "bag"}, "x"), run_of({"0", "1"}, "y")};
  EXPECT_THAT(compare_runs(runs).classes, IsEmpty());
  // A class that was not tested has nothing to compare.
  runs[1] = run_of({"shirt", "bag"}, "y");
  runs[1].samples.pop_back();
  EXPECT_EQ(compare_runs(runs).classes, (std::vector<std::vector<int64_t>>{{0, 0}}));
}

// The surest mistakes are all of one pair; the others have photos of their own.
TEST(ReportTiles, MistakenPairsHaveTheirPhotos) {
  MemoryData data{
      .split = "test", .image_size = {1, 4, 4}, .classes = {"a", "b", "c", "d"}, .pixels = {}};
  data.pixels.resize(60 * 16), data.labels.resize(60);
  ReportRun run{.name = "run"};
  for (int i = 0; i < 60; ++i) {
    const int label = i < 50 ? 0 : 1, guess = i < 50 ? 1 : i < 59 ? 2 : 3;
    const double p = i < 50 ? 0.9 : 0.5 + 0.001 * i;
    run.samples.push_back({.index = i,
                           .label = label,
                           .guess = guess,
                           .second = label,
                           .probability = p,
                           .second_probability = i < 50 ? 0.85 : 0});
  }
  add_test_images(run, MemoryDataset(std::move(data)));
  const json page = data_of(report_html({&run, 1}, {}))["runs"][0];
  std::map<std::array<int64_t, 2>, std::vector<int64_t>> photos;
  for (const char* list : {"mistakes", "uncertain"})
    for (const json& tile : page[list]) EXPECT_LT(tile["index"], 59);
  for (const json& tile : page["confused"]) {
    EXPECT_THAT(tile["image"].get<std::string>(), StartsWith("data:image/png"));
    photos[{tile["label"], tile["guess"]}].push_back(tile["index"]);
  }
  EXPECT_EQ((photos[{1, 3}]), (std::vector<int64_t>{59}));
}

// 10,000 classes and 50,000 images, nearly every mistake another pair.
TEST(ReportSize, ManyClassesAreTheWorstPairs) {
  ReportRun run{.name = "many"};
  PhiloxStream random(1, 2, 3);
  for (int i = 0; i < 10'000; ++i) run.classes.push_back("class " + std::to_string(i));
  for (int i = 0; i < 50'000; ++i)
    run.samples.push_back(
        {.index = i,
         .label = i % 10'000,
         .guess = i % 3 == 0 ? i % 10'000 : static_cast<int>(random.below(9000))});
  for (int i = 0; i < 7; ++i)
    run.samples.push_back({.index = 50'000 + i, .label = 17, .guess = 9999});
  const std::string html = report_html({&run, 1}, {});
  EXPECT_LT(html.size(), 500'000u);
  const json page = data_of(html)["runs"][0];
  EXPECT_EQ(page["every_pair"], false);
  EXPECT_EQ(page["confusion"].size(), 100u);
  EXPECT_EQ(page["confusion"][0], json::parse("[17, 9999, 7]"));
  EXPECT_GT(page["pairs"], 30'000);
  EXPECT_EQ(page["test_images"], 50'007);
  EXPECT_EQ(page["totals"].size(), 10'000u);
  EXPECT_EQ(page["totals"][17][0], 12);
}

// Contrast as WCAG has it.
class Contrast {
 public:
  // The named colours of the page's style, of the light theme or the dark one.
  explicit Contrast(bool dark) {
    const std::string style(kPageStyle);
    const std::regex rule("--([a-z0-9-]+): #([0-9a-f]{3,6});");
    size_t from = style.find(":root {"), to = style.find(":root[data-theme=\"dark\"]");
    if (dark) from = to, to = style.find("* {");
    const std::string part = style.substr(from, to - from);
    for (std::sregex_iterator i(part.begin(), part.end(), rule), end; i != end; ++i)
      colours_[(*i)[1]] = parse((*i)[2]);
  }
  double between(const std::string& text, const std::string& on) const {
    return ratio(luminance(colours_.at(text)), luminance(colours_.at(on)));
  }
  // On a cell of the confusion matrix, `depth` of its colour over the card's.
  double on_cell(const std::string& text, double depth) const {
    std::array<double, 3> mixed;
    for (size_t i = 0; i < 3; ++i)
      mixed[i] = depth * colours_.at("cell")[i] + (1 - depth) * colours_.at("card")[i];
    return ratio(luminance(colours_.at(text)), luminance(mixed));
  }

 private:
  static std::array<double, 3> parse(const std::string& hex) {
    const size_t n = hex.size() / 3;
    std::array<double, 3> rgb;
    for (size_t i = 0; i < 3; ++i)
      rgb[i] = std::stoi(hex.substr(i * n, n) + (n == 1 ? hex.substr(i, 1) : ""), nullptr, 16);
    return rgb;
  }
  static double luminance(const std::array<double, 3>& rgb) {
    constexpr std::array kShare = {0.2126, 0.7152, 0.0722};
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      const double x = rgb[i] / 255;
      sum += kShare[i] * (x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4));
    }
    return sum;
  }
  static double ratio(double a, double b) {
    return (std::max(a, b) + 0.05) / (std::min(a, b) + 0.05);
  }

  std::map<std::string, std::array<double, 3>> colours_;
};

TEST(ReportPage, TextStandsOutInBothThemes) {
  for (const bool dark : {false, true}) {
    SCOPED_TRACE(dark ? "dark" : "light");
    const Contrast contrast(dark);
    for (const char* text : {"text", "muted", "accent", "good", "bad"})
      for (const char* on : {"bg", "card", "soft"})
        EXPECT_GE(contrast.between(text, on), 4.5) << text << " on " << on;
    // classes.js: which ink a cell has.
    for (int depth = 4; depth <= 100; ++depth)
      EXPECT_GE(contrast.on_cell(depth > 80   ? "hi"
                                 : depth > 70 ? "mid"
                                              : "lo",
                                 depth / 100.0),
                4.5)
          << depth;
    for (int i = 0; i < 8; ++i)  // lines: three is enough
      EXPECT_GE(contrast.between("c" + std::to_string(i), "card"), 3) << i;
  }
}

// 300 epochs and 10,000 images of 32 x 32 that do not compress.
TEST(ReportSize, StaysSmall) {
  MemoryData data{.split = "test", .image_size = {3, 32, 32}, .classes = {}};
  PhiloxStream random(1, 2, 3);
  for (int i = 0; i < 10; ++i) data.classes.push_back("class " + std::to_string(i));
  for (int i = 0; i < 200 * 3 * 32 * 32; ++i)
    data.pixels.push_back(static_cast<uint8_t>(random.below(256)));
  data.labels.resize(200);
  ReportRun run{.name = "long"};
  for (int epoch = 1; epoch <= 300; ++epoch)
    run.metrics.push_back({.epoch = epoch,
                           .step = epoch * 391,
                           .train_loss = 1.0 / epoch,
                           .train_acc = 1.0 / 3,
                           .test_acc = 1.0 / 7,
                           .lr = 1e-3 / 7});
  for (int i = 0; i < 10'000; ++i)
    run.samples.push_back({.index = i % 200,
                           .label = static_cast<int>(random.below(10)),
                           .guess = static_cast<int>(random.below(10)),
                           .second = 10});
  add_test_images(run, MemoryDataset(std::move(data)));
  run.augmented = run.mistakes;
  EXPECT_EQ(run.mistakes.size(), 24u);
  EXPECT_LT(report_html({&run, 1}, {}).size(), 1'000'000u);
}

TEST(Predictions, ComeBack) {
  const TempDir dir;
  const std::vector<SampleResult> samples = {
      {.index = 3,
       .label = 1,
       .guess = 0,
       .second = 1,
       .probability = 0.75,
       .second_probability = 0.25,
       .label_probability = 0.25},
      {.index = 70'000, .label = 2, .guess = 2, .second = 0, .probability = 1}};
  EXPECT_THAT(load_predictions(dir.path()), IsEmpty());
  save_predictions(dir.path(), samples);
  EXPECT_EQ(load_predictions(dir.path()), samples);
  const std::string text = read_file(predictions_path(dir.path()));
  write_file_atomic(predictions_path(dir.path()), text.substr(0, text.size() - 2));
  EXPECT_EQ(load_predictions(dir.path()).size(), 1u) << "a torn line is dropped";
  for (const char* bad :
       {"1,2,3", "1,2,3,2,3,0,0", "1,-2,3,0,3,0,0", "1,999999999,3,0,3,0,0", ""}) {
    write_file_atomic(predictions_path(dir.path()), "header\n" + std::string(bad) + "\n");
    EXPECT_ERROR(load_predictions(dir.path()), ErrorKind::kInput, "predictions.csv' line 2");
  }
}

TEST(Predictions, RankTheClasses) {
  const std::vector<float> logits = {0, 2, 1, 2};
  const SampleResult r = result_of(logits, 2, 17);
  EXPECT_EQ(r.guess, 1);
  EXPECT_EQ(r.second, 3);
  EXPECT_DOUBLE_EQ(r.probability, r.second_probability);
  EXPECT_NEAR(r.probability + r.second_probability + r.label_probability * (1 + std::exp(-1)), 1,
              1e-12);
  EXPECT_EQ(result_of(std::vector<float>{3, 1}, 0, 0).second, 1);
  EXPECT_EQ(result_of(std::vector<float>{3}, 0, 0).second, 0);
}

TEST(Base64, AsTheStandardHasIt) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(EncodeWebp, ComesBackAsAPicture) {
  Image image;
  image.reshape(3, 40, 60);
  for (size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<uint8_t>(i / image.plane_size() * 90 + i % 60);
  const std::string bytes = encode_webp(image);
  const Image back =
      decode_image({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x");
  ASSERT_EQ(back.width, 60);
  for (size_t i = 0; i < image.pixels.size(); ++i) ASSERT_NEAR(back.pixels[i], image.pixels[i], 24);
}

// A masked pretraining shows photos, what was hidden of them and what the model fills in.
TEST(Reconstructions, AreDrawnOfAPretraining) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.task = Task::kMae, recipe.epochs = 2, recipe.mask_ratio = 0.5;
  Trainer trainer(recipe, tiny.options("mae"));
  trainer.run();
  const Finished done = test::run_vitrum({"report", tiny / "mae"}, tiny / "output");
  ASSERT_EQ(done.code, 0) << done.err;
  const std::string png = read_text(tiny / "mae/report-reconstructions.png");
  const json page = data_of(read_text(tiny / "mae/report.html"))["runs"][0];
  EXPECT_EQ(page["reconstructions"], "data:image/png;base64," + base64(png));
  const Image sheet =
      decode_image({reinterpret_cast<const uint8_t*>(png.data()), png.size()}, "sheet");
  EXPECT_EQ(sheet.width, 2 * (3 * (14 * 8 + 4) + 8));
  EXPECT_EQ(sheet.height, 4 * (14 * 8 + 4) + 4);
  // A run that learns from labels has none.
  Trainer(tiny.recipe(), tiny.options("labels")).run();
  EXPECT_TRUE(page_of(tiny / "labels")["reconstructions"].is_null());
  // Nor one whose decoder is gone.
  fs::remove(tiny / "mae/last/decoder.safetensors");
  EXPECT_TRUE(page_of(tiny / "mae")["reconstructions"].is_null());
}

TEST(Reconstructions, HiddenPatchesAreGreyAndFilledInWithThePhotosOwnLight) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.task = Task::kMae, recipe.mask_ratio = 0.5;
  Trainer trainer(recipe, tiny.options("mae"));
  trainer.run();
  const auto all = reconstruct(tiny / "mae/last", recipe, trainer.data().test(), 3);
  ASSERT_EQ(all.size(), 3u);
  for (const Reconstruction& r : all) {
    int hidden = 0;
    for (int patch = 0; patch < 4; ++patch) {
      double photo = 0, filled = 0;
      bool grey = true, same = true;
      for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 4; ++x) {
          const auto at = static_cast<size_t>((patch / 2 * 4 + y) * 8 + patch % 2 * 4 + x);
          grey &= r.seen.pixels[at] == 128;
          same &=
              r.seen.pixels[at] == r.photo.pixels[at] && r.filled.pixels[at] == r.photo.pixels[at];
          photo += r.photo.pixels[at] / 16.0, filled += r.filled.pixels[at] / 16.0;
        }
      EXPECT_TRUE(grey || same) << patch;
      hidden += grey;
      EXPECT_NEAR(filled, photo, 45) << "a guess about 0 with the patch's own mean";
    }
    EXPECT_EQ(hidden, 2);
  }
  const auto again = reconstruct(tiny / "mae/last", recipe, trainer.data().test(), 3,
                                 {.device = "cpu", .threads = 3});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(again[i].filled.pixels, all[i].filled.pixels);
}

}  // namespace
}  // namespace vitrum
