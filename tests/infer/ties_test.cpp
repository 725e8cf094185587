// Equal logits: the class with the lower index comes first, wherever classes are put into order.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/vitrum.h"

namespace vitrum {
namespace {

using testing::ElementsAre;

std::vector<int> indices(const std::vector<Prediction>& predictions) {
  std::vector<int> all;
  for (const Prediction& p : predictions) all.push_back(p.index);
  return all;
}

TEST(Ties, TopKIsInTheOrderOfClasses) {
  EXPECT_THAT(indices(top_predictions(std::vector<float>{1, 1, 1, 1, 1, 1}, {}, 4)),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(indices(top_predictions(std::vector<float>{0, 2, 1, 2, 0, 1, 2}, {}, 7)),
              ElementsAre(1, 3, 6, 2, 5, 0, 4));
  std::vector<float> many(1000, 0.5f);
  many[700] = many[300] = 1;
  EXPECT_THAT(indices(top_predictions(many, {}, 4)), ElementsAre(300, 700, 0, 1));
}

TEST(Ties, EvaluationRanksInTheOrderOfClasses) {
  const std::vector<float> equal(8, 0.25f);
  for (int label = 0; label < 8; ++label) {
    EvaluationTotals totals(8);
    totals.add(equal, label);
    const Evaluation e = totals.result();
    EXPECT_EQ(e.top1, label < 1 ? 1 : 0) << label;
    EXPECT_EQ(e.top5, label < 5 ? 1 : 0) << label;
    EXPECT_EQ(e.confusion, (Confusion{{label, 0, 1}}));
    const SampleResult sample = result_of(equal, label, 0);
    EXPECT_EQ(sample.guess, 0);
    EXPECT_EQ(sample.second, 1);
  }
  EXPECT_EQ(result_of(std::vector<float>{1, 2, 0, 2}, 0, 0).guess, 1);
  EXPECT_EQ(result_of(std::vector<float>{1, 2, 0, 2}, 0, 0).second, 3);
  EXPECT_EQ(result_of(std::vector<float>{1, 2, 1}, 0, 0).second, 0);
}

// A model whose weights are all zero finds every class equally likely.
TEST(Ties, EveryInterfaceAnswersInTheOrderOfClasses) {
  const test::TempDir dir;
  const ModelSpec spec = test::tiny_rgb_model();
  const auto backend = make_backend({.device = "reference"});
  Graph g(Mode::kInference);
  trace(g, spec, 1);
  ParamStore store(g, *backend);
  save_model_dir(dir / "model", spec, store);
  test::write_file(dir / "a.png", test::encode_png(test::gradient(3, 40, 40)));

  Predictor predictor(dir / "model");
  EXPECT_THAT(indices(predictor.classify(dir / "a.png", 5)), ElementsAre(0, 1, 2, 3, 4));

  vitrum_model* model = nullptr;
  ASSERT_EQ(vitrum_load((dir / "model").c_str(), nullptr, &model), VITRUM_OK);
  vitrum_prediction best[7];
  size_t count = 0;
  EXPECT_EQ(vitrum_classify_file(model, (dir / "a.png").c_str(), best, 7, &count), VITRUM_OK);
  ASSERT_EQ(count, 7u);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(best[i].index, i);
  vitrum_free(model);

  const test::Finished cli = test::run_vitrum(
      {"classify", dir / "a.png", "--model", dir / "model", "--top-k", "4", "--json", "-q"},
      dir / "output");
  ASSERT_EQ(cli.code, 0) << cli.err;
  std::vector<int> got;
  const nlohmann::json line = nlohmann::json::parse(cli.out);
  for (const auto& p : line["predictions"]) got.push_back(p["index"].get<int>());
  EXPECT_THAT(got, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace vitrum
