// What is read is never written over, whatever it is called; what is somebody else's only with
// --force.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_model.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/npy.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

class OutputGuardCli : public testing::Test {
 protected:
  OutputGuardCli() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    const test::Bytes photo = test::encode_png(test::gradient(3, 32, 32));
    for (const char* name : {"train/goldfish/a.png", "train/pizza/b.png", "val/goldfish/c.png"})
      test::write_file(dir_ / ("data/" + std::string(name)), photo);
    test::write_file(dir_ / "cat.png", photo);
    write_file_atomic(dir_ / "list.csv", "cat.png,pizza\n");
    write_file_atomic(dir_ / "recipe.toml", "epochs = 1\n");
    write_npy(dir_ / "in.npy", {1, 3, 32, 32}, std::vector<float>(3 * 32 * 32));
    fs::create_directories(dir_ / "run");
    write_file_atomic(dir_ / "run/config.toml", "data = \"folder:" + (dir_ / "data") + "\"\n");
    write_file_atomic(dir_ / "run/metrics.jsonl", "{}\n");
    fs::create_directories(dir_ / "run/best");
    write_file_atomic(dir_ / "run/best/notes.html", "<!doctype html>mine");
    write_file_atomic(dir_ / "notes.txt", "mine");
    before_ = files();
  }

  // Every file with its bytes, and links with where they lead.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path()))
      if (entry.is_symlink())
        all[entry.path()] = "-> " + fs::read_symlink(entry.path()).string();
      else if (entry.is_regular_file())
        all[entry.path()] = read_file(entry.path());
    return all;
  }

  test::Finished run(const Words& words) const { return test::run_vitrum(words, scratch_ / "x"); }

  // `words` in which OUT is `output`: a usage error of one line that names `output` and `part`, and
  // every file is as it was, with --force as well.
  void expect_refused(Words words, const std::string& output, const std::string& part) {
    before_ = files();
    for (std::string& word : words)
      if (word == "OUT") word = output;
    for (int force = 0; force < 2; ++force) {
      const test::Finished o = run(words);
      const std::string what = testing::PrintToString(words) + "\n" + o.err;
      EXPECT_EQ(o.code, 2) << what;
      EXPECT_THAT(o.err, AllOf(HasSubstr(output), HasSubstr(part))) << what;
      EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << what;
      EXPECT_TRUE(files() == before_) << what;
      words.push_back("--force");
    }
  }

  Words embed() const {
    return {"embed", dir_ / "cat.png", "--model", dir_ / "model", "--output", "OUT"};
  }
  Words forward() const {
    return {"forward", "--model", dir_ / "model", "--input", dir_ / "in.npy", "--output", "OUT"};
  }
  Words export_onnx() const { return {"export", "--model", dir_ / "model", "--output", "OUT"}; }
  Words explain() const {
    return {"explain", dir_ / "cat.png", "--method", "rollout",
            "--model", dir_ / "model",   "--output", "OUT"};
  }
  Words explain_folder() const {
    Words words = explain();
    words[1] = dir_ / "data/train/pizza";
    return words;
  }
  Words convert() const { return {"convert", dir_ / "model", "OUT", "--to", "timm"}; }
  Words report() const { return {"report", dir_ / "run", "--output", "OUT"}; }
  Words data(const std::string& spec) const { return {"data", spec, "--output", "OUT"}; }
  Words train() const {
    return {"train",        "--recipe", dir_ / "recipe.toml",        "--model",
            dir_ / "model", "--data",   "folder:" + (dir_ / "data"), "--out",
            "OUT"};
  }

  test::TempDir dir_, scratch_;
  std::map<std::string, std::string> before_;
};

TEST_F(OutputGuardCli, NoVerbWritesOverWhatItReads) {
  const std::string weights = dir_ / "model/model.safetensors";
  struct Case {
    Words words;
    std::string output, part;
  };
  const std::string folder = "folder:" + (dir_ / "data"), csv = "csv:" + (dir_ / "list.csv");
  const std::vector<Case> cases = {
      {embed(), weights, "lies in '" + (dir_ / "model")},
      {{"embed", dir_ / "list.csv", "--model", dir_ / "model", "--output", "OUT"},
       dir_ / "list.csv",
       "is '" + (dir_ / "list.csv")},
      {{"embed", "--data", csv, "--model", dir_ / "model", "--output", "OUT"},
       dir_ / "list.csv",
       "is '" + (dir_ / "list.csv")},
      {{"embed", "--data", folder, "--model", dir_ / "model", "--output", "OUT"},
       dir_ / "data/train/pizza/b.npy",
       "lies in '" + (dir_ / "data/train")},
      {forward(), dir_ / "in.npy", "is '" + (dir_ / "in.npy")},
      {forward(), weights, "lies in '" + (dir_ / "model")},
      {export_onnx(), weights, "lies in '" + (dir_ / "model")},
      {explain(), dir_ / "model", "is '" + (dir_ / "model")},
      {explain(), dir_ / "model/pictures", "lies in '" + (dir_ / "model")},
      {explain_folder(), dir_ / "data/train/pizza", "is '" + (dir_ / "data/train/pizza")},
      {explain_folder(), dir_ / "data/train/pizza/x", "lies in '" + (dir_ / "data/train/pizza")},
      {convert(), weights, "lies in '" + (dir_ / "model")},
      {convert(), dir_ / "model", "is '" + (dir_ / "model")},
      {report(), dir_ / "run/metrics.jsonl", "is '" + (dir_ / "run/metrics.jsonl")},
      {report(), dir_ / "run/config.toml", "is '" + (dir_ / "run/config.toml")},
      {report(), dir_ / "run/best/notes.html", "lies in '" + (dir_ / "run/best")},
      {report(), dir_ / "data/train/pizza/b.png", "lies in '" + (dir_ / "data/train")},
      {data(folder), dir_ / "data/val/goldfish/c.png", "lies in '" + (dir_ / "data/val")},
      {data(csv), dir_ / "cat.png", "is '" + (dir_ / "cat.png")},
      {train(), dir_ / "model", "is '" + (dir_ / "model")},
      {train(), dir_ / "model/run", "lies in '" + (dir_ / "model")},
      {train(), dir_ / "data/train/run", "lies in '" + (dir_ / "data/train")},
  };
  for (const Case& c : cases) expect_refused(c.words, c.output, c.part);
}

// The same file by other names, and names of files that would be in a directory that is read.
TEST_F(OutputGuardCli, LinksHideNothing) {
  fs::create_symlink("model/model.safetensors", dir_ / "soft.safetensors");
  fs::create_symlink("soft.safetensors", dir_ / "softer.safetensors");
  fs::create_hard_link(dir_ / "model/model.safetensors", dir_ / "hard.safetensors");
  fs::create_hard_link(dir_ / "in.npy", dir_ / "hard.npy");
  fs::create_symlink("model", dir_ / "folder");
  fs::create_symlink("model/new.npy", dir_ / "dangling.npy");
  fs::create_symlink(dir_ / "cat.png", dir_ / "model/outside.npy");
  const std::string model = "'" + (dir_ / "model") + "'";
  for (const char* name : {"model/../model/model.safetensors", "soft.safetensors",
                           "softer.safetensors", "hard.safetensors", "folder/model.safetensors",
                           "folder/new.npy", "dangling.npy", "model/outside.npy"})
    expect_refused(embed(), dir_ / name, model);
  expect_refused(forward(), dir_ / "hard.npy", "'" + (dir_ / "in.npy") + "'");

  // As the hub's cache has it: the file that is read lies elsewhere.
  fs::rename(dir_ / "model/model.safetensors", dir_ / "blob.safetensors");
  fs::create_symlink("../blob.safetensors", dir_ / "model/model.safetensors");
  expect_refused(embed(), dir_ / "blob.safetensors", model);
}

// A run writes best/ and last/: where one of them is the model that it starts from.
TEST_F(OutputGuardCli, ARunDoesNotReplaceItsOwnStart) {
  fs::create_directories(dir_ / "old");
  fs::rename(dir_ / "model", dir_ / "old/best");
  Words words = train();
  words[4] = dir_ / "old/best";
  expect_refused(words, dir_ / "old", "is '" + (dir_ / "old/best"));
}

// Nor one file of it, nor what its scan would remove.
TEST_F(OutputGuardCli, ARunDoesNotReplaceFilesThatItStartsFrom) {
  Words words = train();
  words[0] = "finetune";
  for (const char* folder : {"best", "lr_scan-0.001"}) {
    const std::string place = dir_ / ("out/" + std::string(folder));
    fs::create_directories(place);
    fs::copy_file(dir_ / "model/model.safetensors", place + "/w.safetensors");
    Words more = words;
    more.insert(more.end(), {"--weights", place + "/w.safetensors", "--lr-scan", "0.001,0.01"});
    expect_refused(more, dir_ / "out", place + "/w.safetensors', which is read, lies in it");
    fs::remove_all(dir_ / "out");
  }
}

// Nor a file that only the index names which it reads.
TEST_F(OutputGuardCli, ShardsOfAnIndexAreNotReplaced) {
  fs::create_directories(dir_ / "sharded");
  for (const char* name : {"part-1.safetensors", "model.safetensors"})
    fs::copy_file(dir_ / "model/model.safetensors", dir_ / ("sharded/" + std::string(name)));
  const std::string index = dir_ / "sharded/some.json";
  write_file_atomic(index, R"({"weight_map":{"a":"part-1.safetensors","b":"model.safetensors"}})");
  const Words words = {"convert", index, "OUT", "--to", "timm", "--arch", "vit_tiny_patch16_224"};
  const std::string part = dir_ / "sharded/part-1.safetensors";
  expect_refused(words, part, "is '" + part);
  fs::create_symlink("sharded/part-1.safetensors", dir_ / "link.safetensors");
  expect_refused(words, dir_ / "link.safetensors", "is '" + part);
  expect_refused(words, dir_ / "sharded", "is '" + (dir_ / "sharded/model.safetensors"));
}

// Nor shards that are looked at as images are, nor anything beside them.
TEST_F(OutputGuardCli, ShardsOfImagesAreNotReplaced) {
  const Words pack = {"data", "pack", "folder:" + (dir_ / "data"), dir_ / "shards", "-q"};
  ASSERT_EQ(run(pack).code, 0);
  Words words = embed();
  words[1] = "shards:" + (dir_ / "shards/train");
  expect_refused(words, dir_ / "shards/train/new.npy", "lies in '" + (dir_ / "shards/train"));
  words[1] = "shards:" + (dir_ / "shards");
  expect_refused(words, dir_ / "shards/val/new.npy", "lies in '" + (dir_ / "shards/val"));
}

// Nor the package's files, which DATA does not name.
TEST_F(OutputGuardCli, TheInstalledDataSetIsNotReplaced) {
  const std::string installed = "/usr/share/datasets/fashion-mnist";
  const std::string file = installed + "/t10k-labels-idx1-ubyte.gz";
  if (!fs::exists(file)) GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  fs::create_symlink(file, dir_ / "x.png");
  expect_refused(data("fashion-mnist"), dir_ / "x.png", "is '" + file);
}

// A list that comes by standard input is read, too.
TEST_F(OutputGuardCli, AListFromStandardInputIsNotReplaced) {
  write_file_atomic(dir_ / "photos.csv", (dir_ / "cat.png") + "\n");
  const int input = open((dir_ / "photos.csv").c_str(), O_RDONLY), own = dup(STDIN_FILENO);
  for (Words words : {embed(), explain()}) {
    words[1] = "-";
    dup2(input, STDIN_FILENO), lseek(STDIN_FILENO, 0, SEEK_SET);
    const std::string output = words[0] == "embed" ? dir_ / "photos.csv" : dir_ / "pictures";
    std::replace(words.begin(), words.end(), std::string("OUT"), output);
    words.push_back("--force");
    const test::Finished o = run(words);
    EXPECT_EQ(o.code, words[0] == "embed" ? 2 : 0) << o.err;
    EXPECT_EQ(read_file(dir_ / "photos.csv"), (dir_ / "cat.png") + "\n");
  }
  dup2(own, STDIN_FILENO), close(own), close(input);
}

// Nor is a file of texts.
TEST_F(OutputGuardCli, TextsAreNotReplaced) {
  const std::string words = VITRUM_SOURCE_DIR "/tests/golden/words/clip";
  write_file_atomic(dir_ / "texts.csv", "a cat\na dog\n");
  fs::create_hard_link(dir_ / "texts.csv", dir_ / "hard.csv");
  fs::create_symlink("texts.csv", dir_ / "soft.csv");
  const Words embed_texts = {"embed",    "--text", "@" + (dir_ / "texts.csv"), "--model", words,
                             "--output", "OUT"};
  for (const char* name : {"texts.csv", "hard.csv", "soft.csv"})
    expect_refused(embed_texts, dir_ / name, "is '" + (dir_ / "texts.csv"));
}

// Files of somebody else's: refused, replaced with --force.
TEST_F(OutputGuardCli, FilesOfAnotherKindNeedForce) {
  const auto expect_force = [&](Words words, const std::string& output, const std::string& why) {
    before_ = files();
    std::replace(words.begin(), words.end(), std::string("OUT"), output);
    const test::Finished o = run(words);
    EXPECT_EQ(o.code, 2) << output << o.err;
    EXPECT_THAT(o.err, AllOf(HasSubstr(output), HasSubstr(why), HasSubstr("--force")));
    EXPECT_TRUE(files() == before_) << o.err;
    words.push_back("--force");
    const test::Finished forced = run(words);
    EXPECT_EQ(forced.code, 0) << output << forced.err;
  };
  for (const char* name : {"a.npy", "b.safetensors", "c.csv", "d.npz", "thesis.html"})
    write_file_atomic(dir_ / name, "somebody's");
  expect_force(embed(), dir_ / "a.npy", "is not a .npy array");
  EXPECT_THAT(read_file(dir_ / "a.npy"), testing::StartsWith("\x93NUMPY"));
  expect_force(embed(), dir_ / "b.safetensors", "is not a .safetensors file");
  expect_force(embed(), dir_ / "c.csv", "is not a table");
  expect_force({"convert", dir_ / "model", "OUT", "--to", "npz"}, dir_ / "d.npz",
               "is not a weight file");
  expect_force(report(), dir_ / "thesis.html", "is not an HTML page");
  for (const Words& words : {forward(), export_onnx(), data("csv:" + (dir_ / "list.csv"))}) {
    write_file_atomic(dir_ / "notes.txt", "mine");
    expect_force(words, dir_ / "notes.txt", "exists and is not a");
  }
  fs::create_directories(dir_ / "papers");
  write_file_atomic(dir_ / "papers/config.txt", "mine");
  expect_force(explain(), dir_ / "papers", "holds 'config.txt'");
  fs::remove_all(dir_ / "papers"), fs::create_directories(dir_ / "papers");
  write_file_atomic(dir_ / "papers/config.txt", "mine");
  expect_force(convert(), dir_ / "papers", "holds files, and no model");
  EXPECT_EQ(read_file(dir_ / "papers/config.txt"), "mine");
}

TEST_F(OutputGuardCli, DownloadsDoNotMixWithOtherFiles) {
  for (const Words& words : {Words{"download", "owner/name", "--to", dir_ / "data"},
                             Words{"data", "download", "mnist", "--to", dir_ / "data"}}) {
    const test::Finished o = run(words);
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_THAT(o.err, AllOf(HasSubstr("holds files"), HasSubstr("--force")));
  }
}

TEST_F(OutputGuardCli, ARunDoesNotReplaceFilesThatAreNotOfARun) {
  fs::create_directories(dir_ / "out");
  write_file_atomic(dir_ / "out/metrics.csv", "mine");
  Words words = train();
  words.back() = dir_ / "out";
  const test::Finished o = run(words);
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, AllOf(HasSubstr("out/metrics.csv"), HasSubstr("--force")));
  EXPECT_EQ(read_file(dir_ / "out/metrics.csv"), "mine");
}

// Known before the images are compared.
TEST_F(OutputGuardCli, ADirectoryOfAModelIsNoFile) {
  for (const Words& words : {Words{"quantize", dir_ / "model", "OUT"}, convert()})
    expect_refused(words, dir_ / "notes.txt", "is not a folder");
}

// What a verb wrote itself it writes again, unasked; so it does what was only made beforehand.
TEST_F(OutputGuardCli, OwnFilesAreReplaced) {
  write_file_atomic(dir_ / "x.npy", "");
  const std::vector<std::pair<Words, std::string>> own = {
      {embed(), "x.npy"},
      {embed(), "x.safetensors"},
      {embed(), "x.csv"},
      {forward(), "y.npy"},
      {export_onnx(), "m.onnx"},
      {explain(), "pictures"},
      {convert(), "timm"},
      {convert(), "timm.pth"},
      {data("csv:" + (dir_ / "list.csv")), "sheet.png"},
      {report(), "run/report.html"},
      {report(), "run/other.html"},
      {report(), "page.html"}};
  for (auto [words, output] : own) {
    std::replace(words.begin(), words.end(), std::string("OUT"), dir_ / output);
    for (int time = 1; time <= 2; ++time) {
      const test::Finished o = run(words);
      EXPECT_EQ(o.code, 0) << output << ", time " << time << "\n" << o.err;
    }
  }
  const Words texts = {"embed",
                       "--text",
                       "a cat",
                       "--model",
                       VITRUM_SOURCE_DIR "/tests/golden/words/clip",
                       "--output",
                       dir_ / "texts.csv"};
  EXPECT_EQ(run(texts).code, 0);
  EXPECT_EQ(run(texts).code, 0);
  Words external = export_onnx();
  external.back() = dir_ / "e.onnx", external.push_back("--external");
  EXPECT_EQ(run(external).code, 0);
  EXPECT_EQ(run(external).code, 0);
}

// What a killed export left is gone after the next one.
TEST_F(OutputGuardCli, LeftoversOfAKilledProcessGo) {
  write_file_atomic(dir_ / ".m.onnx.0.vitrum-tmp", "torn");
  Words words = export_onnx();
  words.back() = dir_ / "m.onnx";
  EXPECT_EQ(run(words).code, 0);
  EXPECT_TRUE(fs::exists(dir_ / "m.onnx"));
  EXPECT_FALSE(fs::exists(dir_ / ".m.onnx.0.vitrum-tmp"));

  // And what a killed convert left is no reason to ask.
  for (const char* kept : {"model.safetensors", ".model.safetensors.0.vitrum-tmp"}) {
    fs::create_directories(dir_ / "out");
    fs::copy_file(dir_ / "model/model.safetensors", dir_ / ("out/" + std::string(kept)));
    words = convert(), words[2] = dir_ / "out";
    const test::Finished o = run(words);
    EXPECT_EQ(o.code, 0) << kept << o.err;
    EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "out"), {}), 2) << kept;
    fs::remove_all(dir_ / "out");
  }
}

}  // namespace
}  // namespace vitrum
