#include "vitrum/weights/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace vitrum {
namespace {

std::string little_endian(uint64_t n) { return {reinterpret_cast<const char*>(&n), sizeof n}; }

std::string file_of(std::string_view header, size_t data_bytes) {
  return little_endian(header.size()) + std::string(header) + std::string(data_bytes, '\x2a');
}

// Without the fsync of write_file_atomic: there are many of these.
void put(const std::string& path, std::string_view bytes) {
  OutputFile(path, O_CREAT | O_TRUNC).write(bytes);
}

void expect_refused(const std::string& bytes, const std::string& part) {
  const TempDir dir;
  const std::string path = dir / "bad.safetensors";
  put(path, bytes);
  EXPECT_ERROR(SafetensorsFile{path}, ErrorKind::kInput, part);
  EXPECT_ERROR(SafetensorsFile{path}, ErrorKind::kInput, path);
}

SafetensorsFile accepted(const TempDir& dir, const std::string& bytes) {
  put(dir / "x.safetensors", bytes);
  return SafetensorsFile(dir / "x.safetensors");
}

TEST(Safetensors, RoundTrip) {
  const TempDir dir;
  const std::string path = dir / "m.safetensors";
  std::vector<float> a(2 * 3);
  std::iota(a.begin(), a.end(), 0.5f);
  std::vector<uint16_t> b{0x3f80, 0x4000, 0x4040};
  std::vector<int64_t> step{1234567890123};
  std::vector<uint8_t> bytes{1, 2, 3, 4, 5};
  const std::vector<NamedTensor> tensors = {{"bytes", {bytes.data(), {5}, DType::kU8}},
                                            {"blocks.0.w", {a.data(), {2, 3}, DType::kF32}},
                                            {"b", {b.data(), {3, 1}, DType::kBF16}},
                                            {"nothing", {nullptr, {0, 4}, DType::kF32}},
                                            {"step", {step.data(), {}, DType::kI64}}};
  write_safetensors(path, tensors, {{"format", "pt"}, {"quote", "a \"b\"\n\u00e9"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("quote"), "a \"b\"\n\u00e9");
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.tensors()[0].name, "step");  // the widest type comes first, names break ties
  EXPECT_EQ(file.tensors()[1].name, "blocks.0.w");
  EXPECT_EQ(file.tensors()[2].name, "nothing");
  for (const NamedTensor& t : tensors) {
    const TensorInfo& info = file.at(t.name);
    EXPECT_EQ(info.shape, t.tensor.shape);
    EXPECT_EQ(info.dtype, t.tensor.dtype);
    ASSERT_EQ(info.bytes, t.tensor.bytes());
    if (info.bytes == 0) continue;
    EXPECT_EQ(std::memcmp(file.bytes(info).data(), t.tensor.data, info.bytes), 0);
    const auto address = reinterpret_cast<uintptr_t>(file.bytes(info).data());
    EXPECT_EQ(address % size_of(info.dtype), 0u) << t.name;
  }
}

TEST(Safetensors, HeaderBytesAreThoseOfTheOfficialLibrary) {
  const TempDir dir;
  float one = 1;
  write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", {&one, {1}, DType::kF32}}},
                    {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(dir / "m"),
            little_endian(padded.size()) + padded + std::string("\0\0\x80\x3f", 4));
}

TEST(Safetensors, NoTensors) {
  const TempDir dir;
  write_safetensors(dir / "m", {});
  EXPECT_TRUE(SafetensorsFile(dir / "m").tensors().empty());
}

TEST(Safetensors, FindAtAndCopy) {
  const TempDir dir;
  float pair[] = {1, 2};
  write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", {pair, {2}, DType::kF32}}});
  const SafetensorsFile file(dir / "m");
  EXPECT_EQ(file.find("v"), nullptr);
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_ERROR(file.at("v"), ErrorKind::kInput, "has no tensor \"v\"");

  float copy[2] = {};
  file.copy_to(file.at("w"), {copy, {2}, DType::kF32});
  EXPECT_EQ(copy[1], 2);
  EXPECT_ERROR(file.copy_to(file.at("w"), {copy, {2, 1}, DType::kF32}), ErrorKind::kInput,
               "is f32 (2), expected f32 (2, 1)");
  EXPECT_ERROR(file.copy_to(file.at("w"), {copy, {2}, DType::kI32}), ErrorKind::kInput,
               "expected i32");
}

TEST(Safetensors, MayReplaceTheFileItReads) {
  const TempDir dir;
  std::vector<float> w(5000, 3);
  write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", {w.data(), {5000}, DType::kF32}}});
  const SafetensorsFile file(dir / "m");
  auto* mapped = const_cast<std::byte*>(file.bytes(file.at("w")).data());
  write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", {mapped, {5000}, DType::kF32}}});
  std::vector<float> copy(5000);
  const SafetensorsFile again(dir / "m");
  again.copy_to(again.at("w"), {copy.data(), {5000}, DType::kF32});
  EXPECT_EQ(copy, w);
}

TEST(Safetensors, WriterRefusesBadNames) {
  const TempDir dir;
  float x = 0;
  const TensorView view{&x, {1}, DType::kF32};
  EXPECT_ERROR(write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", view}, {"w", view}}),
               ErrorKind::kInput, "\"w\" is given twice");
  EXPECT_ERROR(write_safetensors(dir / "m", std::vector<NamedTensor>{{"__metadata__", view}}),
               ErrorKind::kInput, "__metadata__");
  EXPECT_EQ(dir.entries(), 0u);
}

// What the format allows though we never write it.
TEST(Safetensors, AcceptsUnalignedDataAndAnyOrder) {
  const TempDir dir;
  const auto file =
      accepted(dir, file_of(R"({"b":{"data_offsets":[3,7],"shape":[1],"dtype":"F32"},)"
                            R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}} )",
                            7));
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.at("b").offset, 3u);
}

TEST(Safetensors, AcceptsEmptyTensorsWhereOthersMeet) {
  const TempDir dir;
  const auto file =
      accepted(dir, file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                            R"("e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                            R"("f":{"dtype":"F32","shape":[2,0],"data_offsets":[3,3]}})",
                            3));
  EXPECT_EQ(file.tensors().size(), 3u);
}

TEST(Safetensors, RefusesHostileFraming) {
  const std::string ok = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  expect_refused("", "only 0 bytes");
  expect_refused("1234567", "only 7 bytes");
  expect_refused(little_endian(0), "does not start with '{'");
  expect_refused(little_endian(0) + "{}", "does not start with '{'");
  expect_refused(little_endian(1) + "{", "not valid JSON");
  expect_refused(little_endian(7) + "{}", "truncated");
  expect_refused(little_endian(uint64_t{1} << 63) + ok, "exceeds");
  expect_refused(little_endian(~uint64_t{0}) + ok, "exceeds");
  expect_refused(little_endian(100'000'001) + ok, "exceeds");
  expect_refused(little_endian(100'000'000) + ok, "truncated");
  expect_refused(file_of(ok, 3), "truncated: tensor \"w\"");
  expect_refused(file_of(ok, 5), "1 bytes after its last tensor");
  expect_refused(file_of("{}", 1), "1 bytes after");
  expect_refused(file_of(" {}", 0), "does not start with '{'");
  expect_refused(file_of("\xEF\xBB\xBF{}", 0), "does not start with '{'");
  expect_refused(file_of("{} x", 0), "not valid JSON");
  expect_refused(file_of("{}{}", 0), "not valid JSON");
  expect_refused(file_of("{\"\xff\":1}", 0), "not valid JSON");
}

// Each is the value of a tensor "w" with 4 bytes of data.
TEST(Safetensors, RefusesHostileTensors) {
  struct Case {
    const char *json, *part;
  };
  const Case cases[] = {
      {R"(1)", "\"w\" is a number, not an object"},
      {R"([])", "\"w\" is an array"},
      {R"(null)", "\"w\" is null"},
      {R"({})", "lacks one of"},
      {R"({"dtype":"F32","shape":[1]})", "lacks one of"},
      {R"({"shape":[1],"data_offsets":[0,4]})", "lacks one of"},
      {R"({"dtype":"F32","data_offsets":[0,4]})", "lacks one of"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1})", "unknown key \"extra\""},
      {R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", "\"dtype\" twice"},
      {R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})", "\"shape\" twice"},
      {R"({"dtype":"F4","shape":[8],"data_offsets":[0,4]})", "unsupported dtype \"F4\""},
      {R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", "unsupported dtype"},
      {R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", "a number in \"dtype\""},
      {R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", "a number in \"shape\""},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "a negative number in \"shape\""},
      {R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", "a fraction"},
      {R"({"dtype":"F32","shape":[1e30],"data_offsets":[0,4]})", "a huge number"},
      {R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]})", "a huge number"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", "the dimension"},
      {R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", "a string in \"shape\""},
      {R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})", "an array in \"shape\""},
      {R"({"dtype":"F32","shape":[true],"data_offsets":[0,4]})", "a boolean"},
      {R"({"dtype":"F32","shape":[{}],"data_offsets":[0,4]})", "an object"},
      {R"({"dtype":"F32","shape":[4194305,4194305,211106198978564],"data_offsets":[0,4]})",
       "impossible shape"},  // the product is 4 modulo 2^64
      {R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]})",
       "impossible shape"},
      {R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})", "impossible shape"},
      {R"({"dtype":"U8","shape":[4611686018427387904,4,0],"data_offsets":[0,4]})",
       "impossible shape"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]})", "more than 6 dimensions"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "needs 8 bytes"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "needs 4 bytes"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", "lacks one of"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", "more than two data_offsets"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", "a negative number"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})", "nothing describes the bytes before"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]})",
       "needs 4 bytes"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]})",
       "nothing describes"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.json);
    expect_refused(file_of(std::string(R"({"w":)") + c.json + "}", 4), c.part);
  }
}

TEST(Safetensors, RefusesHostileCombinations) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto with = [&](const std::string& b) { return "{" + a + "," + b + "}"; };
  expect_refused(file_of(with(a), 4), "the tensor \"a\" twice");
  expect_refused(file_of(with(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]})"), 7),
                 "overlaps");
  expect_refused(file_of(with(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})"), 4),
                 "overlaps");
  expect_refused(file_of(with(R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]})"), 9),
                 "nothing describes");
  expect_refused(file_of(with(R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]})"), 4),
                 "overlaps");
  expect_refused(file_of(with(R"("__metadata__":1)"), 4), "where a string belongs");
  expect_refused(file_of(with(R"("__metadata__":{"k":1})"), 4), "a number where a string belongs");
  expect_refused(file_of(with(R"("__metadata__":{"k":{}})"), 4),
                 "an object where a string belongs");
  expect_refused(file_of(with(R"("__metadata__":{"k":"1","k":"2"})"), 4), "the key \"k\" twice");
  expect_refused(file_of(with(R"("__metadata__":{},"__metadata__":{})"), 4),
                 "\"__metadata__\" twice");
}

TEST(Safetensors, RefusesBloatedHeaders) {
  std::string many = "{";
  for (size_t i = 0; i <= SafetensorsFile::kMaxTensors; ++i)
    many += (i ? ",\"" : "\"") + std::to_string(i) +
            R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_refused(file_of(many + "}", 0), "more than 65536 tensors");
  expect_refused(file_of(R"({"a":)" + std::string(5'000'000, '['), 0), "nests deeper");
  expect_refused(file_of(R"({"a":)" + std::string(1'000'000, '{'), 0), "nests deeper");
  expect_refused(file_of("{\"" + std::string(1'000'000, 'n') + "\":1}", 0),
                 "nnn…\" has a name of 1000000 bytes");
  expect_refused(file_of("{\"\\u001b[2J\":1}", 0), "\"?[2J\"");  // nothing reaches the terminal raw
}

// A file damaged at any byte, or cut anywhere, is read or refused, never worse.
TEST(Safetensors, EveryDamagedByteIsHandled) {
  const TempDir dir;
  float w[] = {1, 2, 3};
  write_safetensors(dir / "m", std::vector<NamedTensor>{{"w", {w, {3}, DType::kF32}}},
                    {{"k", "v"}});
  const std::string good = read_file(dir / "m");
  const auto open = [&](const std::string& bytes) {
    put(dir / "bad", bytes);
    try {
      const SafetensorsFile file(dir / "bad");
      for (const TensorInfo& t : file.tensors()) EXPECT_LE(t.offset + t.bytes, bytes.size());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return false;
    }
  };
  EXPECT_TRUE(open(good));
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(open(good.substr(0, i))) << i;
    for (const int flip : {0x01, 0x10, 0x80}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      open(bad);
    }
  }
}

}  // namespace
}  // namespace vitrum
