// `vitrum train` as a user meets it: exit codes, streams, signals.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/process.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using test::eventually;
using test::Finished;
using test::Process;
using test::read_text;
using test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TrainCli : public testing::Test {
 protected:
  std::vector<std::string> arguments(std::vector<std::string> more) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    tiny_ / "model",
                                    "--data",
                                    "mnist:" + (tiny_ / ""),
                                    "--batch-size",
                                    "16",
                                    "--lr",
                                    "3e-3",
                                    "--threads",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Finished train(std::vector<std::string> more) const {
    return test::run_vitrum(arguments(std::move(more)), tiny_ / "output");
  }
  std::unique_ptr<Process> start(std::vector<std::string> more) const {
    return std::make_unique<Process>(test::vitrum_command(arguments(std::move(more))),
                                     tiny_ / "stdout", tiny_ / "stderr");
  }
  // A run that has saved something and is far from its end.
  std::unique_ptr<Process> start_long_run() const {
    auto process = start({"--out", tiny_ / "run", "--epochs", "100000", "--json"});
    EXPECT_TRUE(eventually([&] { return has_checkpoint(tiny_ / "run"); }));
    return process;
  }

  TinyRun tiny_;
};

ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST_F(TrainCli, TellsPeopleWhatHappened) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "2"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("epoch 2/2"), HasSubstr("test accuracy "), HasSubstr(tiny_ / "run"),
                    HasSubstr("eval --model"), HasSubstr("serve --model"),
                    HasSubstr("bench --model"), HasSubstr("report.html")));
  EXPECT_THAT(read_text(tiny_ / "run/report.html"), HasSubstr("\"state\":\"finished\""));
  EXPECT_THAT(run.err, AllOf(HasSubstr("parameters"), HasSubstr("75 training and 21 test images"),
                             Not(HasSubstr("warning"))));
}

TEST_F(TrainCli, TellsOfAWarmUpThatDoesNotEnd) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "1", "--set", "warmup_epochs=2"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("warning the warm-up has 10 steps and the run 5"));
}

TEST_F(TrainCli, CountsTheImagesThatTheDeviceKeeps) {
  const Finished run =
      train({"--out", tiny_ / "run", "--epochs", "1", "--set", "data_on_device=on"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr(" for activations, "));
  EXPECT_THAT(run.err, HasSubstr(" for the images\n"));
}

TEST_F(TrainCli, TakesTheTeacherOutOfARecipe) {
  write_file_atomic(tiny_ / "soft.toml", "teacher = \"nowhere\"\ndistillation = \"soft\"\n");
  const Finished run = train({"--recipe", tiny_ / "soft.toml", "--set", "teacher=", "--epochs", "1",
                              "--out", tiny_ / "run"});
  EXPECT_EQ(run.code, 0) << run.err;
  const Finished again = train({"--resume", tiny_ / "run", "--set", "epochs=2"});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(TrainCli, ModelsAreComparedOnData) {
  EXPECT_EQ(train({"--out", tiny_ / "run", "--epochs", "1", "-q"}).code, 0);
  const auto compare = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"models", "--compare", tiny_ / "run/best", tiny_ / "run/last",
                               "vit_small28", "--data", "mnist:" + (tiny_ / "")});
    return test::run_vitrum(more, tiny_ / "output");
  };
  const Finished table = compare({});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(lines(table.out), 4);
  EXPECT_THAT(table.out, AllOf(HasSubstr("run/best"), HasSubstr("images/s"), HasSubstr(" % ")));
  for (size_t at = 0, end; (end = table.out.find('\n', at)) != table.out.npos; at = end + 1)
    EXPECT_LE(end - at, 80u);
  EXPECT_THAT(compare({"--json"}).out, HasSubstr("\"accuracy\":null,\"images_per_second\":null"));
}

TEST_F(TrainCli, JsonIsAllThereIsOnStdout) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "3", "--json"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(lines(run.out), 3);
  std::string expected;  // the rows of the file, and whose they are
  const std::string rows = read_text(tiny_ / "run/metrics.jsonl");
  for (size_t at = 0, end; (end = rows.find('\n', at)) != rows.npos; at = end + 1)
    expected += "{\"run\":\"" + (tiny_ / "run") + "\"," + rows.substr(at + 1, end - at);
  EXPECT_EQ(run.out, expected);
  for (const char* key :
       {"epoch", "step", "train_loss", "train_acc", "test_acc", "lr", "images_per_second"})
    EXPECT_THAT(run.out, HasSubstr("\"" + std::string(key) + "\":"));
}

TEST_F(TrainCli, QuietIsQuiet) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "1", "-q"});
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.code, 0);
}

TEST_F(TrainCli, AFinishedRunSaysSoAndHowToGoOn) {
  EXPECT_EQ(train({"--out", tiny_ / "run", "--epochs", "1", "-q"}).code, 0);
  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--resume", tiny_ / "run"});
    return test::run_vitrum(more, tiny_ / "output");
  };
  const Finished again = resume({});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, StartsWith("finished after 1 epoch; --epochs 2 goes on\n"));
  const Finished more = resume({"--epochs", "2"});
  EXPECT_THAT(more.out, AllOf(HasSubstr("epoch 2/2"), Not(HasSubstr("goes on"))));
  EXPECT_THAT(resume({}).out, HasSubstr("finished after 2 epochs; --epochs 4 goes on\n"));
}

TEST_F(TrainCli, LinesFitATerminalAndCountRight) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "1"});
  for (size_t at = 0, end; (end = run.out.find('\n', at)) != run.out.npos; at = end + 1)
    if (const std::string line = run.out.substr(at, end - at); line.starts_with("epoch")) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  EXPECT_THAT(run.err, HasSubstr("plan    1 epoch of 5 steps"));
  EXPECT_THAT(run.err, Not(HasSubstr("1 epochs")));
}

TEST_F(TrainCli, TellsHowLongItTakesBeforeTheFirstEpoch) {
  const Finished run = train({"--out", tiny_ / "run", "--epochs", "2"});
  EXPECT_THAT(run.err, testing::ContainsRegex("\ntime    about [0-9]+ s\n"));
}

TEST_F(TrainCli, DefaultDirectoryIsTheFirstFreeOne) {
  const std::string script = "cd '" + (tiny_ / "") + "' && exec \"$@\"";
  for (const char* expected : {"runs/model-1", "runs/model-2"}) {
    std::vector<std::string> command = {"sh", "-c", script, "sh"};
    const auto own = test::vitrum_command(arguments({"--set", "max_steps=1", "--json"}));
    command.insert(command.end(), own.begin(), own.end());
    EXPECT_EQ(Process(command, tiny_ / "stdout", tiny_ / "stderr").wait(), 0)
        << read_text(tiny_ / "stderr");
    EXPECT_TRUE(
        std::filesystem::exists(tiny_ / (std::string(expected) + "/best/model.safetensors")))
        << expected;
  }
}

TEST_F(TrainCli, OptionsComeFromTheEnvironmentToo) {
  setenv("VITRUM_EPOCHS", "2", 1);
  const Finished run = train({"--out", tiny_ / "run", "--json"});
  unsetenv("VITRUM_EPOCHS");
  EXPECT_EQ(lines(run.out), 2) << run.err;
}

TEST_F(TrainCli, SignalsSaveAndSayHowToGoOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto process = start_long_run();
    process->signal(signal);
    EXPECT_EQ(process->wait(), 128 + signal);
    EXPECT_THAT(read_text(tiny_ / "stderr"), AllOf(HasSubstr("finishing; Ctrl-C again stops now\n"),
                                                   HasSubstr("train --resume " + (tiny_ / "run"))));
    const Finished rest = test::run_vitrum(
        {"train", "--resume", tiny_ / "run", "--set", "max_steps=1", "--json", "-q"},
        tiny_ / "output");
    EXPECT_EQ(rest.code, 0) << rest.err;
    std::filesystem::remove_all(tiny_ / "run");
  }
}

TEST_F(TrainCli, SecondSignalStopsAtOnce) {
  // Batches long enough for the second one to come before the first has been obeyed.
  const auto process = start({"--out", tiny_ / "run", "--epochs", "1000", "--set",
                              "checkpoint_every=1", "--set", "image_size=96"});
  ASSERT_TRUE(eventually([&] { return has_checkpoint(tiny_ / "run"); }));
  process->signal(SIGINT);
  ASSERT_TRUE(eventually(
      [&] { return read_text(tiny_ / "stderr").find("finishing") != std::string::npos; }));
  process->signal(SIGINT);
  EXPECT_EQ(process->wait(), 130);
}

TEST_F(TrainCli, MistakesAreOneLineAndTheRightCode) {
  const auto expect = [&](int code, std::vector<std::string> more, const std::string& text) {
    const Finished run = train(std::move(more));
    EXPECT_EQ(run.code, code) << text << "\n" << run.err;
    EXPECT_EQ(lines(run.err), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr(text));
    EXPECT_EQ(run.out, "");
  };
  write_file_atomic(tiny_ / "bad.toml", "epochs = 3\nbatchsize = 4\n");
  expect(2, {"--recipe", tiny_ / "bad.toml"},
         "bad.toml:2: unknown key 'batchsize'; did you mean 'batch_size'");
  expect(2, {"--set", "lr=x"}, "lr");
  expect(2, {"--set", "image_size=30"}, "not divisible");
  expect(2, {"--modle", "x"}, "--model");
  expect(3, {"--model", "vit_tiny_cifa"}, "vit_tiny_cifar");
  expect(3, {"--data", "mnist:" + (tiny_ / "nowhere")}, "nowhere");
  expect(3, {"--recipe", tiny_ / "missing.toml"}, "missing.toml");
  expect(3, {"--resume", tiny_ / "nowhere"}, "nowhere");
  expect(3, {"--out", tiny_ / "bad.toml/run"}, "bad.toml/run");
  expect(3, {"--out", "/proc/vitrum-run"}, "/proc/vitrum-run");
}

TEST_F(TrainCli, Distill) {
  const std::string run = tiny_ / "teacher";
  ASSERT_EQ(train({"--epochs", "1", "--out", run}).code, 0);
  const auto distill = [&](std::vector<std::string> more) {
    std::vector<std::string> all = arguments(std::move(more));
    all[0] = "distill";
    return test::run_vitrum(all, tiny_ / "output");
  };
  const Finished done = distill({"--epochs", "1", "--teacher", run + "/best", "--distillation",
                                 "soft", "--tau", "3", "--out", tiny_ / "student"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("soft distillation, alpha 0.5, tau 3"));
  EXPECT_THAT(read_text(tiny_ / "student/config.toml"), HasSubstr("distillation = \"soft\""));
  const Finished none = distill({});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no teacher: give --teacher MODEL"));
  EXPECT_EQ(distill({"--teacher", run + "/best", "--alpha", "1.5"}).code, 2);
  EXPECT_EQ(distill({"--teacher", run + "/best", "--distillation", "medium"}).code, 2);
  EXPECT_EQ(distill({"--teacher", run + "/worst"}).code, 3);
  EXPECT_THAT(distill({"--teacher", run}).err,
              HasSubstr("is a run; its model is " + run + "/best"));
}

TEST_F(TrainCli, Pretrain) {
  const auto pretrain = [&](std::vector<std::string> more) {
    std::vector<std::string> all = arguments(std::move(more));
    all[0] = "pretrain";
    return test::run_vitrum(all, tiny_ / "output");
  };
  const std::string run = tiny_ / "masked";
  const Finished done = pretrain({"--method", "mae", "--epochs", "2", "--out", run});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("75 % of patches hidden, decoder 16 wide and 4 deep"),
                              Not(HasSubstr("output")), Not(HasSubstr("classes"))));
  EXPECT_THAT(done.out, AllOf(HasSubstr("epoch 2/2  loss "), HasSubstr("test loss "),
                              HasSubstr("finetune --weights " + run + "/last"),
                              Not(HasSubstr("nan")), Not(HasSubstr("accuracy"))));
  EXPECT_THAT(read_text(run + "/config.toml"), HasSubstr("task = \"mae\""));
  const std::string page = read_text(run + "/report.html");
  EXPECT_THAT(page, AllOf(HasSubstr("\"state\":\"finished\""), Not(HasSubstr("No predictions"))));
  const Finished tuned =
      train({"--set", "weights=" + run + "/last", "--epochs", "1", "--out", tiny_ / "tuned"});
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  const Finished other = pretrain({"--method", "dino"});
  EXPECT_EQ(other.code, 2);
  EXPECT_EQ(lines(other.err), 1) << other.err;
  const Finished labels = pretrain({"--set", "mixup=0.8"});
  EXPECT_EQ(labels.code, 2);
  EXPECT_THAT(labels.err, HasSubstr("mixup is for learning with labels"));
  const Finished classes = pretrain({"--set", "task=classify"});
  EXPECT_EQ(classes.code, 2);
  EXPECT_THAT(classes.err, HasSubstr("vitrum train"));
}

TEST_F(TrainCli, UnwritableDirectory) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  std::filesystem::create_directory(tiny_ / "closed");
  chmod((tiny_ / "closed").c_str(), 0500);
  const Finished run = train({"--out", tiny_ / "closed/run"});
  EXPECT_EQ(run.code, 3);
  EXPECT_EQ(lines(run.err), 1) << run.err;
}

// A disk of our own that runs full; needs the right to mount one.
TEST_F(TrainCli, FullDiskLosesNothing) {
  const std::string disk = tiny_ / "disk", copy = tiny_ / "copy";
  std::filesystem::create_directory(disk);
  const std::string mount = "mount -t tmpfs -o size=420k none '" + disk + "'";
  if (Process({"unshare", "-rm", "sh", "-c", mount}, "/dev/null", "/dev/null").wait() != 0)
    GTEST_SKIP() << "cannot mount a file system here";
  const std::string script =
      mount + " && { \"$@\"; code=$?; cp -r '" + disk + "'/run '" + copy + "'; exit $code; }";
  std::vector<std::string> command = {"unshare", "-rm", "sh", "-c", script, "sh"};
  const auto own = test::vitrum_command(
      arguments({"--out", disk + "/run", "--set", "checkpoint_every=1", "--epochs", "3000", "-q"}));
  command.insert(command.end(), own.begin(), own.end());
  EXPECT_EQ(Process(command, tiny_ / "stdout", tiny_ / "stderr").wait(), 4);
  EXPECT_EQ(lines(read_text(tiny_ / "stderr")), 1) << read_text(tiny_ / "stderr");
  const Finished rest = test::run_vitrum(
      {"train", "--resume", copy, "--set", "epochs=1", "--json", "-q"}, tiny_ / "output");
  EXPECT_EQ(rest.code, 0) << rest.err;
}

}  // namespace
}  // namespace vitrum
