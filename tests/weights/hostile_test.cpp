// Malformed models and images: each ends in one clear line, within a second and within 64 MB over
// the file's size. tests/support/hostile_files.h has the files.
#include <fcntl.h>
#include <gmock/gmock.h>

#include "tests/support/data_files.h"
#include "tests/support/hostile_files.h"
#include "tests/support/measured.h"
#include "tests/support/process.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/optional_codecs.h"
#include "vitrum/data/shard_scan.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Sanitizers and debugging cost time and memory of their own: those are bounded in the release
// build.
#ifdef NDEBUG
constexpr double kMaxSeconds = 1;
constexpr int64_t kMaxGrowth = 64 << 10;  // KB
#else
constexpr double kMaxSeconds = 15;
constexpr int64_t kMaxGrowth = 4 << 20;
#endif

void read_model(const std::string& path) {
  const auto source = open_tensors(path);
  for (const TensorInfo& tensor : source->tensors()) source->bytes(tensor);
}

struct Suite {
  std::string name;
  HostileFiles (*files)();
  void (*read)(const std::string& path);
  std::string codec = "";  // that may not be installed
};
std::ostream& operator<<(std::ostream& out, const Suite& suite) { return out << suite.name; }

void read_picture(const std::string& path) { read_image(path); }
void read_shard(const std::string& path) {
  scan_shards(fs::path(path).parent_path().string(), {fs::path(path).filename().string()});
}
void read_shard_index(const std::string& path) { parse_shard_index(read_file(path), path); }

void put(const std::string& path, const std::string& bytes) {
  OutputFile(path, O_CREAT | O_TRUNC).write(bytes);
}

class Hostile : public testing::TestWithParam<Suite> {
 protected:
  TempDir dir_;
};

TEST_P(Hostile, EndsInOneClearLine) {
  for (const CodecStatus& codec : optional_codecs())
    if (codec.name == GetParam().codec && !codec.available)
      GTEST_SKIP() << codec.name << ": " << codec.detail;
  float one = 1;
  write_safetensors(dir_ / "one.safetensors",
                    std::vector<NamedTensor>{{"a", {&one, {1}, DType::kF32}}});
  const std::string path = dir_ / "bad";
  for (const HostileFile& file : GetParam().files()) {
    SCOPED_TRACE(file.name);
    int64_t size_kb = 0;
    {
      const std::string bytes = file.bytes();
      size_kb = static_cast<int64_t>(bytes.size() / 1024);
      put(path, bytes);
    }
    const Measured result = measure([&] { GetParam().read(path); });
    EXPECT_EQ(result.code, static_cast<int>(ErrorKind::kInput)) << result.message;
    EXPECT_THAT(result.message, HasSubstr(file.part));
    EXPECT_THAT(result.message, HasSubstr(dir_.path()));
    EXPECT_THAT(result.message, testing::Not(HasSubstr("\n")));
    EXPECT_LT(result.message.size(), 1000u);
    EXPECT_LT(result.seconds, kMaxSeconds);
    EXPECT_LT(result.grown_kb, kMaxGrowth + size_kb);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, Hostile,
    testing::Values(
        Suite{"Safetensors", hostile_safetensors, read_model},
        Suite{"Index", hostile_indexes, read_model}, Suite{"Zip", hostile_zips, read_model},
        Suite{"Pickle", hostile_pickles, read_model}, Suite{"Array", hostile_arrays, read_model},
        Suite{"Jpeg", hostile_jpegs, read_picture}, Suite{"Png", hostile_pngs, read_picture},
        Suite{"WebP", hostile_webps, read_picture}, Suite{"Gif", hostile_gifs, read_picture},
        Suite{"Bmp", hostile_bmps, read_picture},
        Suite{"Tiff", hostile_tiffs, read_picture, "TIFF"},
        Suite{"Heif", hostile_heifs, read_picture, "HEIC, AVIF"},
        Suite{"Tar", hostile_tars, read_shard},
        Suite{"ShardIndex", hostile_shard_indexes, read_shard_index}),
    [](const auto& info) { return info.param.name; });

TEST(HostileFiles, AreManyMoreThanAHundred) {
  size_t count = 0;
  for (const auto& files :
       {hostile_safetensors(), hostile_indexes(), hostile_zips(), hostile_pickles(),
        hostile_arrays(), hostile_jpegs(), hostile_pngs(), hostile_webps()})
    count += files.size();
  EXPECT_GT(count, 200u);
}

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// What looks odd but is right is read.
TEST(Oddities, Decode) {
  for (const auto& [height, width] : {std::pair(1, 1), {1, 65500}, {65500, 1}}) {
    const Image jpeg = decode_image(encode_jpeg(gradient(1, height, width)), "j");
    EXPECT_EQ(std::pair(jpeg.height, jpeg.width), std::pair(height, width));
    const Image drawn = gradient(3, height, width);
    EXPECT_EQ(decode_image(encode_png(drawn), "p").pixels, drawn.pixels);
  }
  std::string jpeg;
  for (const uint8_t byte : encode_jpeg(gradient(3, 8, 8))) jpeg += static_cast<char>(byte);
  std::string exif;
  for (int i = 0; i < 200; ++i) exif += "\xff\xe1\xff\xff" + std::string(65533, 'E');
  EXPECT_EQ(decode_image(bytes_of(std::string(jpeg).insert(2, exif)), "j").pixels,
            decode_image(bytes_of(jpeg), "j").pixels);
}

TEST(Oddities, ModelsLoad) {
  const TempDir dir;
  const auto tensors = [&](const std::string& bytes) {
    put(dir / "odd", bytes);
    return open_tensors(dir / "odd")->tensors().size();
  };
  EXPECT_EQ(tensors(safetensors_of("{}", 0)), 0u);
  EXPECT_EQ(tensors(safetensors_of("{}" + std::string(5000, ' '), 0)), 0u);
  const std::string npy =
      npy_of("{\"shape\":(),\"fortran_order\":True,\"descr\":'<f4'}", "1234", 3);
  EXPECT_EQ(tensors(zip_of({{"../../etc/passwd.npy", npy}})), 1u);  // a key like any other
}

// The same through the binary: exit code 3 and one line.
TEST(HostileFiles, EndTheBinaryWithOneLine) {
  const TempDir dir;
  put(dir / "model/config.json", R"({"architecture": "vit_tiny_patch16_224"})");
  write_npy(dir / "in.npy", {1, 3, 224, 224}, std::vector<float>(3 * 224 * 224));
  size_t count = 0;
  for (const auto& files : {hostile_safetensors(), hostile_pickles()})
    for (size_t i = 0; i < files.size(); i += 9, ++count) {
      put(dir / "model/model.safetensors", files[i].bytes());
      const Finished run = run_vitrum({"forward", "--model", dir / "model", "--input",
                                       dir / "in.npy", "--output", dir / "out.npy"},
                                      dir / "run");
      EXPECT_EQ(run.code, 3) << files[i].name << ": " << run.err;
      EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    }
  EXPECT_GT(count, 8u);
}

}  // namespace
}  // namespace vitrum::test
