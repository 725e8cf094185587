#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tests/support/data_files.h"
#include "tests/support/measured.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/philox.h"
#include "vitrum/data/folder.h"
#include "vitrum/data/idx.h"

namespace vitrum {
namespace {

using test::Bytes;
using test::input_error;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Nearest, FindsTypingErrors) {
  const std::vector<std::string> words = {"fashion-mnist", "mnist", "cifar10", "folder"};
  EXPECT_EQ(nearest("fasion-mnist", words), "fashion-mnist");
  EXPECT_EQ(nearest("Cifar-10", words), "cifar10");
  EXPECT_EQ(nearest("imagenet21k", words), std::nullopt);
  EXPECT_EQ(nearest("x", words), std::nullopt);
  EXPECT_EQ(did_you_mean("mnits", words), "; did you mean 'mnist'?");
  EXPECT_EQ(did_you_mean("qqqqqqq", words), "");
  EXPECT_EQ(nearest("mnist", {}), std::nullopt);
  EXPECT_EQ(nearest("mnsit", words), "mnist") << "two neighbours swapped";
}

TEST(Nearest, OffersOnlyWhatIsNear) {
  const std::vector<std::string> options = {"--data", "--batch-size", "--lr", "--depth"};
  EXPECT_EQ(nearest("--batch", options), std::nullopt);
  EXPECT_EQ(nearest("--date", options), "--data");
  EXPECT_EQ(nearest("--deph", options), "--depth");
}

TEST(Nearest, KnowsWhatOthersCallIt) {
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  constexpr OtherName kOthers[] = {{"gpu", "cuda"}, {"tpu", "tensor"}};
  EXPECT_EQ(did_you_mean("GPU", devices, kOthers), "; did you mean 'cuda'?");
  EXPECT_EQ(did_you_mean("tpu", devices, kOthers), "; did you mean 'cpu'?")
      << "what is not to be had here is not offered";
}

class IdxFiles : public testing::TestWithParam<bool> {};

TEST_P(IdxFiles, ReadsBothSplits) {
  const TempDir dir;
  test::write_mnist(dir, 12, 3, GetParam());
  const DataSplits data = open_data("mnist:" + dir.path());
  EXPECT_EQ(data.train->size(), 12);
  EXPECT_EQ(data.test->size(), 3);
  EXPECT_EQ(data.train->image_size(), (ImageSize{1, 4, 5}));
  EXPECT_EQ(data.train->classes().size(), 10u);
  EXPECT_EQ(data.train->label(11), 1);
  const Image image = data.train->read(2);
  ASSERT_EQ(image.pixels.size(), 20u);
  EXPECT_EQ(image.pixels[0], static_cast<uint8_t>(40 * 7));
  EXPECT_EQ(data.test->read(0).pixels[0], 7);
}
INSTANTIATE_TEST_SUITE_P(PlainAndGzip, IdxFiles, testing::Bool());

TEST(Idx, RefusesBadFiles) {
  const TempDir dir;
  const Bytes good = test::idx_images(6, 4, 5);
  const auto error = [&](Bytes bytes) {
    write_file(dir / "images", bytes);
    return input_error([&] { read_idx(dir / "images", 3); });
  };
  EXPECT_THAT(error({}), HasSubstr("magic"));
  EXPECT_THAT(error(Bytes(good.begin(), good.begin() + 9)), HasSubstr("dimensions"));
  EXPECT_THAT(error(Bytes(good.begin(), good.end() - 1)),
              AllOf(HasSubstr("images"), HasSubstr("119 of 120")));
  Bytes bytes = good;
  bytes[3] = 1;
  EXPECT_THAT(error(bytes), HasSubstr("0x00000801; expected 0x00000803"));
  bytes = good;
  bytes.push_back(0);
  EXPECT_THAT(error(bytes), HasSubstr("goes on after"));
  bytes = good;
  for (size_t i = 4; i < 16; ++i) bytes[i] = 0xff;
  EXPECT_THAT(error(bytes), HasSubstr("more than the file can hold"));
  bytes = good;
  bytes[7] = 0;
  EXPECT_THAT(error(bytes), HasSubstr("nothing"));
  Bytes zipped = test::gzip(good);
  EXPECT_NE(error(Bytes(zipped.begin(), zipped.end() - 12)), "");
  EXPECT_NE(error(Bytes(zipped.begin(), zipped.end() - 4)), "");
  zipped[zipped.size() - 6] ^= 0xff;  // checksum
  EXPECT_NE(error(zipped), "");
  EXPECT_THAT(error(test::gzip(Bytes(good.begin(), good.end() - 5))), HasSubstr("115 of 120"));
  EXPECT_NE(input_error([&] { read_idx(dir.path(), 3); }), "");
}

// Every prefix and every single-bit flip in the header: an answer or an error, never a crash.
// Memory is taken for what is there, not for what a header promises.
TEST(Idx, APromiseCostsNothing) {
  const TempDir dir;
  Bytes claim = {0, 0, 8, 3, 0, 0x01, 0x86, 0xa0, 0, 0, 0, 28, 0, 0, 0, 28};  // 10^5 images
  PhiloxStream noise(1, 2, 3);  // which does not pack, so that the file could be as large as that
  for (int i = 0; i < 1 << 20; ++i) claim.push_back(static_cast<uint8_t>(noise.below(256)));
  write_file(dir / "images", test::gzip(claim));
  const test::Measured read = test::measure([&] { read_idx(dir / "images", 3); });
  EXPECT_EQ(read.code, static_cast<int>(ErrorKind::kInput));
  EXPECT_THAT(read.message, HasSubstr("ends after 1048576 of 78400000 bytes"));
  EXPECT_LT(read.grown_kb, 16 << 10);
}

// A megabyte of gzip may hold a gigabyte of zeros, but no gigabyte of images.
TEST(Idx, ABombIsRefusedByItsHeader) {
  const TempDir dir;
  Bytes bomb = {0, 0, 8, 3, 0, 0x02, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28};  // 131,072 images
  bomb.resize(16 + 131'072 * 784);
  write_file(dir / "images", test::gzip(bomb));
  bomb.clear(), bomb.shrink_to_fit();
  const test::Measured read = test::measure([&] { read_idx(dir / "images", 3); });
  EXPECT_EQ(read.code, static_cast<int>(ErrorKind::kInput));
  EXPECT_THAT(read.message, HasSubstr("promises 102760448 bytes, a hundred times the file's"));
  EXPECT_LT(read.grown_kb, 16 << 10);
}

// Read, it would take the memory that its header says: here nearly none of it is on the disk.
TEST(Idx, ImagesThatAreTooLargeAreRefusedByTheHeader) {
  const TempDir dir;
  write_file(dir / "images", Bytes{0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0x80, 0, 0, 0, 0x80, 0});
  ASSERT_EQ(truncate((dir / "images").c_str(), 16 + (off_t{1} << 30)), 0);
  const test::Measured read = test::measure([&] { read_idx(dir / "images", 3); });
  EXPECT_EQ(read.code, static_cast<int>(ErrorKind::kInput));
  EXPECT_THAT(read.message, HasSubstr("images of 32768 x 32768 pixels are too large"));
  EXPECT_LT(read.grown_kb, 16 << 10);
}

TEST(Idx, SurvivesDamage) {
  const TempDir dir;
  for (const Bytes& good : {test::idx_images(3, 2, 2), test::gzip(test::idx_images(3, 2, 2))}) {
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      Bytes bytes = good;
      bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (1 << bit % 8));
      if (bit % 8 == 0) bytes.resize(bit / 8);
      write_file(dir / "x", bytes);
      try {
        read_idx(dir / "x", 3);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput);
      }
    }
  }
}

TEST(Idx, ChecksLabelsAgainstImages) {
  const TempDir dir;
  test::write_mnist(dir, 12, 3);
  write_file(dir / "train-labels-idx1-ubyte", test::idx_labels(11));
  EXPECT_THAT(input_error([&] { open_data("mnist:" + dir.path()); }),
              HasSubstr("11 labels for the 12 images"));
  write_file(dir / "train-labels-idx1-ubyte", test::idx_labels(12, 11));
  EXPECT_THAT(input_error([&] { open_data("mnist:" + dir.path()); }),
              HasSubstr("label 10 of sample 10"));
  std::filesystem::remove(dir / "train-labels-idx1-ubyte");
  EXPECT_THAT(input_error([&] { open_data("mnist:" + dir.path()); }),
              HasSubstr("train-labels-idx1-ubyte"));
}

Bytes cifar_records(int count, int label_bytes, int classes) {
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    for (int b = 0; b < label_bytes; ++b) bytes.push_back(static_cast<uint8_t>(i % classes));
    for (int p = 0; p < 3072; ++p) bytes.push_back(static_cast<uint8_t>(i + p));
  }
  return bytes;
}

void write_cifar10(const TempDir& dir, const std::string& folder) {
  for (int i = 1; i <= 5; ++i) {
    write_file(dir / (folder + "data_batch_" + std::to_string(i) + ".bin"),
               cifar_records(4, 1, 10));
  }
  write_file(dir / (folder + "test_batch.bin"), cifar_records(2, 1, 10));
}

TEST(Cifar, ReadsTen) {
  for (const std::string folder : {"", "cifar-10-batches-bin/"}) {
    const TempDir dir;
    write_cifar10(dir, folder);
    const DataSplits data = open_data("cifar10:" + dir.path());
    EXPECT_EQ(data.train->size(), 20);
    EXPECT_EQ(data.test->size(), 2);
    EXPECT_EQ(data.train->image_size(), (ImageSize{3, 32, 32}));
    EXPECT_EQ(data.train->classes()[3], "cat");
    EXPECT_EQ(data.train->label(7), 3);
    EXPECT_EQ(data.train->read(7).pixels[10], 13);
  }
}

TEST(Cifar, ReadsHundredWithFineLabels) {
  const TempDir dir;
  Bytes records = cifar_records(3, 2, 100);
  records[1] = 99;  // fine label of the first record
  write_file(dir / "train.bin", records);
  write_file(dir / "test.bin", cifar_records(1, 2, 100));
  const auto train = open_split("cifar100:" + dir.path(), "train");
  EXPECT_EQ(train->label(0), 99);
  EXPECT_EQ(train->classes()[42], "42");
  std::string names;
  for (int i = 0; i < 100; ++i) names += "name" + std::to_string(i) + "\n";
  write_file(dir / "fine_label_names.txt", Bytes(names.begin(), names.end()));
  EXPECT_EQ(open_split("cifar100:" + dir.path(), "test")->classes()[42], "name42");
}

TEST(Cifar, RefusesBadFiles) {
  const TempDir dir;
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              HasSubstr("data_batch_1.bin"));
  write_cifar10(dir, "");
  Bytes bytes = cifar_records(4, 1, 10);
  bytes.pop_back();
  write_file(dir / "data_batch_3.bin", bytes);
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              AllOf(HasSubstr("data_batch_3.bin"), HasSubstr("3073-byte records")));
  write_file(dir / "data_batch_3.bin", {});
  EXPECT_NE(input_error([&] { open_data("cifar10:" + dir.path()); }), "");
  bytes = cifar_records(4, 1, 10);
  bytes[3073] = 10;
  write_file(dir / "data_batch_3.bin", bytes);
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              HasSubstr("label 10 of record 1"));
  std::filesystem::remove(dir / "data_batch_3.bin");
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              HasSubstr("data_batch_3.bin"));
  write_file(dir / "data_batch_3.bin", cifar_records(4, 1, 10));
  write_file_atomic(dir / "batches.meta.txt", "air\nautomobile\n");
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              HasSubstr("2 class names; expected 10"));
  write_file_atomic(dir / "batches.meta.txt", "h\xfcndin\n");
  EXPECT_THAT(input_error([&] { open_data("cifar10:" + dir.path()); }),
              HasSubstr("the class 'h\\xfcndin' is not UTF-8"));
}

TEST(Folder, NumbersClassesInByteOrder) {
  const TempDir dir;
  const Bytes png = test::encode_png(test::gradient(3, 3, 2)),
              jpeg = test::encode_jpeg(test::gradient(1, 9, 8));
  for (const std::string name : {"train/b/2.PNG", "train/b/1.png", "train/B/x.Jpeg",
                                 "train/a b/deep/z.png", "val/b/v.png"}) {
    write_file(dir / name, name.ends_with("g") && name.find('J') == std::string::npos ? png : jpeg);
  }
  write_file(dir / "train/b/.hidden.png", {});
  write_file(dir / "train/b/notes.txt", {});
  write_file(dir / "train/.git/x.png", {});
  std::filesystem::create_symlink("1.png", dir / "train/b/0.png");
  std::filesystem::create_directory_symlink("..", dir / "train/b/up");
  const DataSplits data = open_data("folder:" + dir.path());
  EXPECT_THAT(data.train->classes(), ElementsAre("B", "a b", "b"));
  EXPECT_EQ(data.train->classes(), data.test->classes());
  ASSERT_EQ(data.train->size(), 5);
  EXPECT_EQ(data.test->size(), 1);
  EXPECT_EQ(data.test->label(0), 2);
  EXPECT_THAT(data.train->name(2), HasSubstr("b/0.png"));
  EXPECT_EQ(data.train->read(2).pixels, test::gradient(3, 3, 2).pixels);
  EXPECT_EQ(data.train->read(0).channels, 3);
  EXPECT_EQ(data.train->image_size(), (ImageSize{3, 0, 0}));
}

TEST(Folder, ChoosesTheSplit) {
  const TempDir dir;
  const Bytes png = test::encode_png(test::gradient(3, 2, 2));
  for (const std::string name : {"train/a/1.png", "val/a/1.png", "val/a/2.png", "test/a/1.png",
                                 "test/a/2.png", "test/a/3.png"}) {
    write_file(dir / name, png);
  }
  const std::string spec = "folder:" + dir.path();
  EXPECT_EQ(open_data(spec).test->size(), 2);
  EXPECT_EQ(open_split(spec)->size(), 2);
  EXPECT_EQ(open_split(spec, "train")->size(), 1);
  EXPECT_EQ(open_split(spec, "val")->size(), 2);
  EXPECT_EQ(open_split(spec, "test")->size(), 3);
  EXPECT_THROW(open_split(spec, "tset"), Error);
}

TEST(Folder, PlainClassFoldersAreOneSplit) {
  const TempDir dir;
  const Bytes png = test::encode_png(test::gradient(3, 2, 2));
  write_file(dir / "cat/1.png", png);
  write_file(dir / "dog/1.png", png);
  const std::string spec = "folder:" + dir.path();
  EXPECT_THAT(input_error([&] { open_data(spec); }),
              AllOf(HasSubstr("expected train/ and val/"), HasSubstr("--set holdout=0.2")));
  EXPECT_THAT(open_split(spec)->classes(), ElementsAre("cat", "dog"));
  EXPECT_FALSE(has_splits(spec));
  for (const char* split : {"train", "val", "test"})
    EXPECT_THAT(input_error([&] { open_split(spec, split); }),
                AllOf(HasSubstr("has no splits"), HasSubstr("leave out --split")));
  const DataSplits data = open_data(spec, /*test_needed=*/false);
  EXPECT_THAT(data.train->classes(), ElementsAre("cat", "dog"));
  EXPECT_EQ(data.test, nullptr);
}

TEST(Folder, TestImagesAreTakenWhereTheyAre) {
  const TempDir dir;
  const std::string spec = "folder:" + dir.path();
  const Bytes png = test::encode_png(test::gradient(3, 2, 2));
  write_file(dir / "train/cat/1.png", png);
  EXPECT_EQ(open_data(spec, /*test_needed=*/false).test, nullptr);
  write_file(dir / "val/cat/1.png", png);
  EXPECT_EQ(open_data(spec, /*test_needed=*/false).test->size(), 1);
  // val/ is no class, whatever is missing beside it.
  std::filesystem::remove_all(dir / "train");
  EXPECT_THAT(input_error([&] { open_data(spec, false); }), HasSubstr("has no train/"));
}

TEST(Folder, NestsToALimit) {
  const TempDir dir;
  std::string folder = dir / "a";
  for (int i = 0; i < 65; ++i) folder += "/d";
  std::filesystem::create_directories(folder);
  write_file(folder + "/x.png", test::encode_png(test::gradient(3, 4, 4)));
  EXPECT_EQ(image_files(dir / "a/d").size(), 1u);
  EXPECT_THAT(input_error([&] { image_files(dir / "a"); }),
              HasSubstr("nest deeper than 64 levels"));
}

TEST(Folder, RefusesBadFolders) {
  const TempDir dir;
  const std::string spec = "folder:" + dir.path();
  const Bytes png = test::encode_png(test::gradient(3, 2, 2));
  write_file(dir / "train/cat/1.png", png);
  EXPECT_THAT(input_error([&] { open_data(spec); }), HasSubstr("has no val/"));
  write_file(dir / "val/cats/1.png", png);
  EXPECT_THAT(input_error([&] { open_data(spec); }),
              AllOf(HasSubstr("val/cats"), HasSubstr("did you mean 'cat'?")));
  std::filesystem::rename(dir / "val/cats", dir / "val/cat");
  EXPECT_EQ(open_data(spec).test->size(), 1);
  std::filesystem::create_directory(dir / "train/dog");
  EXPECT_THAT(input_error([&] { open_data(spec); }),
              AllOf(HasSubstr("train/dog"), HasSubstr("holds no")));
  if (geteuid() != 0) {
    std::filesystem::permissions(dir / "train/dog", std::filesystem::perms::none);
    EXPECT_THAT(input_error([&] { open_data(spec); }), HasSubstr("train/dog"));
    std::filesystem::create_directory(dir / "train/cat/inner");
    std::filesystem::permissions(dir / "train/cat/inner", std::filesystem::perms::none);
    EXPECT_THAT(input_error([&] { image_files(dir / "train/cat"); }), HasSubstr("train/cat/inner"));
    std::filesystem::permissions(dir / "train/cat/inner", std::filesystem::perms::owner_all);
    std::filesystem::permissions(dir / "train/dog", std::filesystem::perms::owner_all);
  }
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, Bytes(text.begin(), text.end()));
}

TEST(Csv, NumbersAreLabelsAndNamesAreSorted) {
  const TempDir dir;
  write_file(dir / "img/1.png", test::encode_png(test::gradient(3, 2, 2)));
  write_text(dir / "a.csv", "file,class\r\nimg/1.png,7\r\n\r\n\"img/1.png\",2\n");
  auto data = open_split("csv:" + (dir / "a.csv"));
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->label(0), 7);
  EXPECT_EQ(data->classes().size(), 8u);
  EXPECT_EQ(data->read(1).width, 2);
  write_text(dir / "b.csv", "img/1.png,zebra,train\nimg/1.png,\"ape, \"\"big\"\"\",test\n");
  const DataSplits splits = open_data("csv:" + (dir / "b.csv"));
  EXPECT_THAT(splits.train->classes(), ElementsAre("ape, \"big\"", "zebra"));
  EXPECT_EQ(splits.train->label(0), 1);
  EXPECT_EQ(splits.test->label(0), 0);
}

TEST(Csv, RefusesBadLists) {
  const TempDir dir;
  const auto error = [&](const std::string& text) {
    write_text(dir / "a.csv", text);
    return input_error([&] { open_data("csv:" + (dir / "a.csv")); });
  };
  EXPECT_THAT(error("x.png,1\n"), HasSubstr("no third column"));
  EXPECT_THAT(error(""), HasSubstr("lists no images"));
  EXPECT_THAT(error("file,class\n"), HasSubstr("lists no images"));
  EXPECT_THAT(error("x.png\n"), HasSubstr("a.csv:1"));
  EXPECT_THAT(error("x.png,1,train\ny.png,2\n"), HasSubstr("a.csv:2"));
  EXPECT_THAT(error("x.png,1,train\ny.png,,test\n"), HasSubstr("empty field"));
  EXPECT_THAT(error("x.png,1,train\ny.png,1,dev\n"), HasSubstr("split 'dev'"));
  EXPECT_THAT(error("x.png,1,train\n"), HasSubstr("no line of split 'test'"));
  const std::string endless(100'000, 'L');
  EXPECT_LT(error("x.png," + endless + "\xff,train\n").size(), 500u);
  EXPECT_LT(error("x.png,1," + endless + "\n").size(), 500u);
}

TEST(OpenData, NamesTheNearestKind) {
  EXPECT_THAT(input_error([] { open_data("fashon-mnist"); }),
              HasSubstr("did you mean 'fashion-mnist'?"));
  EXPECT_THAT(input_error([] { open_data("imagenet:/x"); }), HasSubstr("expected fashion-mnist"));
  EXPECT_THAT(input_error([] { open_data("mnist:/no/such/place"); }),
              HasSubstr("/no/such/place: no such file or folder (data 'mnist:/no/such/place'); "
                        "`vitrum data download mnist --to /no/such/place` fetches it"));
  const TempDir empty;
  for (const char* name : {"mnist", "cifar10", "cifar100"})
    EXPECT_THAT(input_error([&] { open_data(name + (":" + empty.path())); }),
                HasSubstr(fmt::format("`vitrum data download {} --to {}`", name, empty.path())));
  EXPECT_THAT(input_error([] { open_data("fashion-mnist:/no/such/place"); }),
              HasSubstr("`apt install dataset-fashion-mnist`"));
  EXPECT_THAT(input_error([] { open_data("folder:/no/such/place"); }),
              testing::Not(HasSubstr("download")));
  EXPECT_THROW(open_data("cifar10"), Error);
  EXPECT_THROW(open_data(""), Error);
}

TEST(Holdout, SplitsDisjointAndReproducible) {
  const test::FakeDataset all(100, {1, 2, 2});
  const auto [kept, held] = split_holdout(all, 0.25, 7);
  ASSERT_EQ(kept->size(), 75);
  ASSERT_EQ(held->size(), 25);
  std::set<std::string> names;
  for (int64_t i = 0; i < 75; ++i) names.insert(kept->name(i));
  for (int64_t i = 0; i < 25; ++i) names.insert(held->name(i));
  EXPECT_EQ(names.size(), 100u);
  const auto [same_kept, same_held] = split_holdout(all, 0.25, 7);
  const auto [other_kept, other_held] = split_holdout(all, 0.25, 8);
  int equal = 0, equal_other = 0;
  for (int64_t i = 0; i < 25; ++i) {
    equal += same_held->name(i) == held->name(i);
    equal_other += other_held->name(i) == held->name(i);
  }
  EXPECT_EQ(equal, 25);
  EXPECT_LT(equal_other, 15);
  EXPECT_EQ(held->name(3), "fake " + std::to_string(std::stoi(held->name(3).substr(5))));
  EXPECT_EQ(held->label(3), std::stoi(held->name(3).substr(5)) % 3);
  for (const double fraction : {0.0, 1.0, -1.0, 2.0, 0.001, std::nan("")}) {
    EXPECT_THROW(split_holdout(all, fraction, 7), Error);
  }
}

TEST(RealData, Mnist) {
  const auto dir = test::shared_data("mnist");
  if (!dir) GTEST_SKIP() << "MNIST is not there";
  const DataSplits data = open_data("mnist:" + *dir);
  EXPECT_EQ(data.train->size(), 60000);
  EXPECT_EQ(data.test->size(), 10000);
  EXPECT_EQ(data.train->image_size(), (ImageSize{1, 28, 28}));
  EXPECT_EQ(data.train->label(0), 5);
  EXPECT_EQ(data.test->label(0), 7);
}

TEST(RealData, FashionMnist) {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  const DataSplits data = open_data("fashion-mnist");
  EXPECT_EQ(data.train->size(), 60000);
  EXPECT_EQ(data.test->size(), 10000);
  EXPECT_EQ(data.train->classes()[static_cast<size_t>(data.train->label(0))], "Ankle boot");
}

TEST(RealData, FoldersAndCsv) {
  const auto pizza = test::shared_data("pizza_steak_sushi"),
             validation = test::shared_data("imagenet-val-100/labels.csv");
  if (!pizza || !validation) GTEST_SKIP() << "the photos are not there";
  const DataSplits data = open_data("folder:" + *pizza);
  EXPECT_EQ(data.train->size(), 225);
  EXPECT_EQ(data.test->size(), 75);
  EXPECT_THAT(data.train->classes(), ElementsAre("pizza", "steak", "sushi"));
  const auto listed = open_split("csv:" + *validation);
  EXPECT_EQ(listed->size(), 100);
  EXPECT_EQ(listed->label(0), 7);
}

}  // namespace
}  // namespace vitrum
