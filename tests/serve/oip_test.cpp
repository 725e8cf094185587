#include "vitrum/serve/oip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/measured.h"
#include "vitrum/core/base64.h"

namespace vitrum::serve {
namespace {

constexpr OipShape kShape{1, 2, 2, 3, 5};

OipRequest parse(const std::string& json, const std::string& binary = "") {
  static std::string body;  // what the views point into
  body = json + binary;
  return parse_oip(body, json.size(), kShape, 4);
}

std::string element(const std::string& bytes) {
  std::string out(4, '\0');
  out[0] = static_cast<char>(bytes.size());
  return out + bytes;
}

TEST(Oip, EncodedImagesAsBinaryAndAsBase64) {
  const OipRequest r =
      parse(R"({"id":"7","inputs":[{"name":"image","datatype":"BYTES","shape":[2],)"
            R"("parameters":{"binary_data_size":11}}]})",
            element("ab") + element("c"));
  EXPECT_EQ(r.id, "7");
  EXPECT_FALSE(r.decoded);
  ASSERT_EQ(r.images.size(), 2u);
  EXPECT_EQ(r.images[0], "ab");
  EXPECT_EQ(r.images[1], "c");
  ASSERT_EQ(r.outputs.size(), 1u);
  EXPECT_EQ(r.outputs[0].name, "logits");
  const OipRequest text =
      parse(R"({"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":[")" +
            base64("photo") + R"("]}]})");
  EXPECT_EQ(text.images.at(0), "photo");
}

TEST(Oip, PixelsInBothForms) {
  const OipRequest binary = parse(
      R"({"inputs":[{"name":"pixels","datatype":"UINT8","shape":[2,1,2,2],"parameters":{"binary_data_size":8}}],)"
      R"("outputs":[{"name":"logits","parameters":{"binary_data":true,"classification":9}},{"name":"features"}]})",
      "abcdefgh");
  EXPECT_TRUE(binary.decoded);
  EXPECT_EQ(binary.images.at(1), "efgh");
  EXPECT_TRUE(binary.outputs.at(0).binary);
  EXPECT_EQ(binary.outputs.at(0).classification, 3);  // no more than there are classes
  EXPECT_FALSE(binary.outputs.at(1).binary);
  const OipRequest nested = parse(
      R"({"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,1,2,2],"data":[[[[65,66],[67,68]]]]}]})");
  EXPECT_EQ(nested.images.at(0), "ABCD");
}

TEST(Oip, RefusalsNameWhatIsWrong) {
  const auto fails = [](const std::string& json, const std::string& binary, const char* part) {
    EXPECT_ERROR(parse(json, binary), ErrorKind::kInput, part);
  };
  const std::string image = R"({"inputs":[{"name":"image","datatype":"BYTES","shape":)";
  fails("[]", "", "not a JSON object");
  fails("{", "", "not valid JSON");
  fails("{}", "", "inputs");
  fails(R"({"inputs":[1]})", "", "inputs");
  fails(R"({"inputs":[{"name":"x","datatype":"BYTES","shape":[1]}]})", "", "image or pixels");
  fails(image + R"([0],"data":[]}]})", "", "no image");
  fails(image + R"({},"data":[]}]})", "", "a list of dimensions");
  fails(image + R"([2],"data":["YQ=="]}]})", "", "expected 2 elements");
  fails(image + R"([5],"data":[]}]})", "", "at most 4");
  fails(image + R"([-1],"data":[]}]})", "", "out of range");
  fails(image + R"([1.5],"data":[]}]})", "", "out of range");
  fails(image + R"([1],"data":["*"]}]})", "", "base64");
  fails(image + R"([1],"parameters":{"binary_data_size":99}}]})", "abc", "announced");
  fails(image + R"([1],"parameters":{"binary_data_size":-1}}]})", "abc", "whole number");
  fails(image + R"([1],"parameters":{"binary_data_size":18446744073709551615}}]})", "abc",
        "announced");
  fails(image + R"([1],"parameters":{"binary_data_size":6}}]})",
        std::string("\xff\xff\xff\xff", 4) + "ab", "announced");
  fails(image + R"([2],"parameters":{"binary_data_size":6}}]})", element("ab"), "element 1");
  fails(image + R"([1],"parameters":{"binary_data_size":7}}]})", element("ab") + "x", "left over");
  fails(image + R"([1],"parameters":{"binary_data_size":6}}]})", element("ab") + "x",
        "behind the last");
  const std::string pixels = R"({"inputs":[{"name":"pixels","datatype":"UINT8","shape":)";
  fails(pixels + R"([1,1,2,3],"data":[]}]})", "", "shape is [images, 1, 2, 2]");
  fails(pixels + R"([1,1,2,2],"data":[1,2,3]}]})", "", "4 bytes");
  fails(pixels + R"([1,1,2,2],"data":[1,2,3,256]}]})", "", "0 to 255");
  fails(pixels + R"([1,1,2,2],"data":[1,2,3,4,5]}]})", "", "more data");
  fails(
      R"({"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["YQ=="]}],"outputs":[{"name":"x"}]})",
      "", "outputs are");
  fails(std::string(100, '['), "", "nests deeper");
  EXPECT_ERROR(parse_oip("{}", 3, kShape, 4), ErrorKind::kInput, "larger than the body");
}

// What a list of many small things costs grows with its length, not with the square of it; and a
// request that would take far more memory than its bytes is refused before it does.
TEST(Oip, LongListsAreCheap) {
  const auto list_of = [](const std::string& each, int count) {
    std::string all = R"({"inputs":[)";
    for (int i = 0; i < count; ++i) all += each + ",";
    return all + each + "]}";
  };
  for (const char* each : {"{}", "[]", "\"\""}) {
    const test::Measured some = test::measure([&] { parse(list_of(each, 200'000), ""); });
    EXPECT_EQ(some.code, static_cast<int>(ErrorKind::kInput));
    EXPECT_THAT(some.message, testing::HasSubstr("inputs: expected one tensor"));
    EXPECT_LT(some.seconds, 5) << each;
    const test::Measured many = test::measure([&] { parse(list_of(each, 3'000'000), ""); });
    EXPECT_THAT(many.message, testing::HasSubstr("more than 262144 texts, lists and objects"));
    EXPECT_LT(many.grown_kb, 64 << 10) << each;
  }
  EXPECT_ERROR(parse(list_of("1", 8 << 20), ""), ErrorKind::kInput, "more than 8388608 values");
}

TEST(Oip, AnswersHaveBinaryTensorsBehindTheJson) {
  const OipAnswer text = write_oip(
      "m", "v", "",
      {{.name = "logits", .type = "FP32", .shape = {1, 2}, .numbers = {1, 2.5f}, .texts = {}}});
  EXPECT_EQ(
      text.body,
      R"({"model_name":"m","model_version":"v","outputs":[{"name":"logits","datatype":"FP32","shape":[1,2],"data":[1,2.5]}]})");
  EXPECT_EQ(text.json_bytes, 0u);
  const OipAnswer binary = write_oip("m", "v", "i",
                                     {{.name = "labels",
                                       .type = "BYTES",
                                       .shape = {1},
                                       .numbers = {},
                                       .texts = {"cat"},
                                       .binary = true}});
  EXPECT_EQ(binary.body.substr(binary.json_bytes), element("cat"));
  EXPECT_NE(binary.body.find(R"("binary_data_size":7)"), std::string::npos);
}

}  // namespace
}  // namespace vitrum::serve
