// What becomes of models and keys while they are served: swapped, damaged, shrunk, taken away.
#include <gmock/gmock.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "tests/serve/server_fixture.h"
#include "tests/support/process.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

// Of one parameter of a file of f32.
void change_weights(const std::string& path, const std::string& name,
                    const std::function<void(std::span<float>)>& change) {
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  const SafetensorsFile file(path);
  for (const TensorInfo& t : file.tensors()) {
    std::vector<float>& own = values.emplace_back(t.bytes / sizeof(float));
    std::memcpy(own.data(), file.bytes(t).data(), t.bytes);
    if (t.name == name) change(own);
    tensors.push_back({t.name, {own.data(), t.shape, DType::kF32}});
  }
  write_safetensors(path, tensors);
}

class ServedModels : public ServerTest {};

TEST_F(ServedModels, SwapsKeepTheOldModelWhereTheNewOneIsBroken) {
  start();
  Repository& models = server_->context().repository;
  const std::string before = models.find("tiny")->version();
  models.reload("tiny");
  EXPECT_EQ(models.find("tiny")->version(), before);
  write_file_atomic(dir_ / "tiny/model.safetensors", "broken");
  EXPECT_ANY_THROW(models.reload("tiny"));
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 200);
  ModelSpec other = test::tiny_rgb_model();
  other.labels[0] = "new";
  test::write_tiny_model(dir_ / "tiny", other);
  models.reload("tiny");
  EXPECT_NE(models.find("tiny")->version(), before);
  models.unload("tiny");
  EXPECT_EQ(ask(post("/v1/classify", photo())).status, 503);
  models.reload("tiny");
  models.configure({{"other", dir_ / "tiny"}});
  EXPECT_TRUE(models.reload().empty());
  EXPECT_NE(models.find("other"), nullptr);
  EXPECT_EQ(models.find("tiny"), nullptr) << "nobody names it any more";
}

TEST_F(ServedModels, KeysThatAreGoneOpenNothingAfterASignal) {
  const auto status = [&](const std::string& key) {
    return ask(get("/v1/models", "Authorization: Bearer " + key + "\r\n")).status;
  };
  write_file_atomic(dir_ / "keys", "old\n");
  options_.key_file = dir_ / "keys";
  start();
  EXPECT_EQ(status("old"), 200);
  write_file_atomic(dir_ / "keys", "new\n");
  raise(SIGHUP);
  EXPECT_TRUE(test::eventually([&] { return status("new") == 200; }));
  EXPECT_EQ(status("old"), 401);
}

TEST_F(ServedModels, WeightsThatShrinkAreNoAnswer) {
  start();
  EXPECT_EQ(ask(post("/v1/explain", photo())).status, 200);
  const std::string weights = dir_ / "tiny/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) / 3);
  for (const char* path : {"/v1/classify", "/v1/embed", "/v1/explain"}) {
    const Answer answer = ask(post(path, photo()));
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_THAT(answer.body, Not(HasSubstr("model.safetensors")));
  }
  EXPECT_EQ(ask(get("/v2/health/live")).status, 200);
}

// Weights that are finite and a photo they overflow with: where a patch's first pixel is not grey,
// the difference of its red and its green is infinite.
TEST_F(ServedModels, AnAnswerThatIsNotFiniteIsNone) {
  change_weights(dir_ / "tiny/model.safetensors", "patch_embed.proj.weight",
                 [](std::span<float> w) {
                   constexpr size_t kPlane = 8 * 8;
                   std::ranges::fill(w, 0.f);
                   w[0] = 3e38f, w[kPlane] = -3e38f;
                 });
  start();
  const auto plain = [](uint8_t red) {
    Image image = test::gradient(3, 40, 40);
    std::ranges::fill(image.pixels, uint8_t{0});
    std::fill_n(image.plane(0), image.plane_size(), red);
    return encode_png(image);
  };
  EXPECT_EQ(ask(post("/v1/classify", plain(0))).status, 200);
  for (const char* path : {"/v1/classify", "/v1/embed"}) {
    const Answer answer = ask(post(path, plain(255)));
    EXPECT_EQ(answer.status, 500) << path << " " << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("NaN")) << path;
  }
  const Answer both = ask(post("/v1/classify", multipart({plain(255), plain(0)}), kMultipart));
  EXPECT_EQ(both.status, 200);  // one row costs no other
  const json results = both.parsed()["results"];
  EXPECT_THAT(results[0]["error"].get<std::string>(), HasSubstr("NaN"));
  EXPECT_EQ(results[1]["predictions"].size(), 5u) << both.body;
}

}  // namespace
}  // namespace vitrum::serve
