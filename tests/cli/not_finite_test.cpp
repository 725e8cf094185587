// NaN and infinities in weights and inputs: the tensor is named, whatever the verb.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/all_finite.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using namespace test;

const std::string kTensor = "blocks.1.mlp.fc1.weight";

// Sets one number of one tensor.
void spoil(const std::string& model, const std::string& name, float value) {
  const std::string path = model + "/model.safetensors";
  std::string bytes = read_file(path);
  {
    const SafetensorsFile file(path);
    const std::span<const std::byte> tensor = file.bytes(file.at(name));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const size_t at = sizeof header + header + file.at(name).offset + 4 * (tensor.size() / 8);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
  write_file_atomic(path, bytes);
}

class NotFinite : public testing::Test {
 protected:
  NotFinite() {
    write_tiny_model(model_, tiny_rgb_model());
    write_file(photo_, encode_jpeg(gradient(3, 40, 40)));
    write_npy(input_, {1, 3, 32, 32}, std::vector<float>(3 * 32 * 32, 0.5f));
  }
  Finished run(const std::vector<std::string>& arguments) {
    return run_vitrum(arguments, dir_ / "scratch");
  }
  void expect_named(const std::vector<std::string>& arguments) {
    const Finished f = run(arguments);
    EXPECT_EQ(f.code, 3) << arguments[0] << ": " << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr(model_), HasSubstr(kTensor + " holds NaN or infinite")))
        << arguments[0];
    EXPECT_EQ(std::ranges::count(f.err, '\n'), 1) << f.err;
    EXPECT_FALSE(fs::exists(dir_ / "out"));
  }

  TempDir dir_;
  std::string model_ = dir_ / "model", photo_ = dir_ / "a.jpg", input_ = dir_ / "x.npy";
};

TEST_F(NotFinite, WeightsAreNamed) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF}) {
    spoil(model_, kTensor, bad);
    expect_named({"forward", "--model", model_, "--input", input_, "--output", dir_ / "out"});
    expect_named({"export", "--model", model_, "--output", dir_ / "out"});
    expect_named({"classify", photo_, "--model", model_, "--quiet"});
    expect_named({"explain", photo_, "--model", model_, "--output", dir_ / "pictures"});
    expect_named({"embed", photo_, "--model", model_, "--output", dir_ / "out.npy", "--quiet"});
    expect_named({"serve", "--model", model_, "--listen", "127.0.0.1:0"});
  }
}

// Numbers are never changed, these neither; but not without a word.
TEST_F(NotFinite, ConvertSaysSo) {
  spoil(model_, kTensor, std::numeric_limits<float>::quiet_NaN());
  const Finished f = run({"convert", model_, dir_ / "hf", "--to", "hf"});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_THAT(f.err, HasSubstr(kTensor + " holds NaN or infinite numbers; they are written"));
  EXPECT_TRUE(fs::exists(dir_ / "hf/model.safetensors"));
}

TEST_F(NotFinite, InputsAreNamedWithThePlace) {
  std::vector<float> values(2 * 3 * 32 * 32, 0.5f);
  values[(1 * 3 + 2) * 32 * 32 + 5 * 32 + 7] = std::numeric_limits<float>::quiet_NaN();
  write_npy(input_, {2, 3, 32, 32}, values);
  const Finished f =
      run({"forward", "--model", model_, "--input", input_, "--output", dir_ / "out"});
  EXPECT_EQ(f.code, 3);
  EXPECT_THAT(f.err, AllOf(HasSubstr(input_), HasSubstr("the value at [1, 2, 5, 7] is nan")));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST(AllFinite, LooksAtEveryNumber) {
  for (const size_t size : {1u, 1023u, 1024u, 1025u, 3000u})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> values(size, -std::numeric_limits<float>::max());
      EXPECT_TRUE(all_finite(values));
      values.back() = bad;
      EXPECT_FALSE(all_finite(values)) << size;
      values.back() = 0, values.front() = bad;
      EXPECT_FALSE(all_finite(values)) << size;
    }
  EXPECT_TRUE(all_finite({}));
}

}  // namespace
}  // namespace vitrum
