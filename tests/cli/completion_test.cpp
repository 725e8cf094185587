// Completion: what the binary answers, and what bash, zsh and fish make of it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/process.h"
#include "tests/support/shell.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Completion : public testing::Test {
 protected:
  Completion() {
    ensure_directory(dir_ / "photos"), ensure_directory(dir_ / "my photos");
    for (const char* name : {"recipe.toml", "readme.txt", "photos/cat.jpg", "labels.csv"})
      std::ofstream(dir_ / name) << " ";
  }
  // What may come after these words, the last of which is to be completed.
  std::string after(std::vector<std::string> words) const {
    words.insert(words.begin(), {"completion", "bash", "--", "vitrum"});
    const test::Finished done = test::run_vitrum(words, dir_ / ".out");
    EXPECT_EQ(done.code, 0) << done.err;
    return "\n" + done.out;
  }
  static bool installed(const std::string& shell) {
    return std::system(fmt::format("command -v {} > /dev/null", shell).c_str()) == 0;
  }
  TempDir dir_;
};

TEST_F(Completion, KnowsVerbsAndOptions) {
  EXPECT_THAT(after({""}), AllOf(HasSubstr("\ntrain\ttrain a model"), HasSubstr("\nhelp\t")));
  EXPECT_THAT(after({"cl"}), AllOf(HasSubstr("\nclassify\t"), Not(HasSubstr("train"))));
  EXPECT_THAT(after({"help", "cl"}), HasSubstr("\nclassify\t"));
  EXPECT_THAT(after({"-q", "tr"}), HasSubstr("\ntrain\t"));
  EXPECT_THAT(after({"--threads", "2", "tr"}), HasSubstr("\ntrain\t"));
  EXPECT_THAT(after({"train", ""}), HasSubstr("\n--recipe\t")) << "nothing else can come";
  EXPECT_THAT(after({"train", "--ep"}), HasSubstr("\n--epochs\t"));
  EXPECT_EQ(after({"train", "--epochs", "3", "--ep"}), "\n") << "given already";
  EXPECT_THAT(after({"train", "--set", "lr=1", "--se"}), HasSubstr("\n--set\t")) << "may repeat";
  EXPECT_EQ(after({"train", "--epochs", ""}), "\n") << "a number";
  EXPECT_EQ(after({"classify", "--", "--m"}), "\n:files\t\t\n") << "no options behind --";
}

TEST_F(Completion, OffersEveryOptionOfEveryVerb) {
  const std::string verbs = after({""});
  size_t count = 0;
  for (size_t at = 1, end; (end = verbs.find('\t', at)) != verbs.npos; ++count) {
    const std::string verb = verbs.substr(at, end - at);
    at = verbs.find('\n', end) + 1;
    if (verb == "help") continue;
    const std::string offered = after({verb, "--"});
    const std::string page = test::run_vitrum({"man", verb}, dir_ / ".out").out;
    for (size_t option = 0; (option = page.find(".TP\n\\fB", option)) != page.npos; ++option) {
      std::string name = page.substr(option + 7, page.find("\\fR", option) - option - 7);
      std::erase(name, '\\');
      name.erase(0, name.find("--"));
      if (!name.starts_with("--")) continue;
      EXPECT_THAT(offered, HasSubstr("\n" + name + "\t")) << verb;
    }
  }
  EXPECT_GE(count, 20u);
}

TEST_F(Completion, KnowsValues) {
  EXPECT_THAT(after({"train", "--model", "vit_base_p"}),
              AllOf(HasSubstr("\nvit_base_patch16_224\t"), HasSubstr("\n:files\t\t\n")));
  EXPECT_THAT(after({"summary", "deit"}), HasSubstr("\ndeit_tiny_patch16_224\t"));
  EXPECT_THAT(after({"classify", "x.jpg", "--arch=resnet1"}), HasSubstr("\n--arch=resnet18\t"));
  EXPECT_EQ(after({"train", "--recipe", "r"}), "\n:files\t\t.toml\n");
  EXPECT_EQ(after({"train", "--recipe=r"}), "\n:files\t--recipe=\t.toml\n");
  EXPECT_THAT(after({"data", "f"}),
              AllOf(HasSubstr("\nfashion-mnist\t"), HasSubstr("\nfolder:\t")));
  EXPECT_EQ(after({"data", "folder:p"}), "\n:directories\tfolder:\t\n");
  EXPECT_EQ(after({"eval", "--data", "csv:"}), "\n:files\tcsv:\t\n");
  EXPECT_EQ(after({"train", "--resume", ""}), "\n:directories\t\t\n");
  EXPECT_EQ(after({"bench", "--device", ""}), "\nauto\t\ncpu\t\ncuda\t\nreference\t\n");
  EXPECT_THAT(after({"bench", "--precision", ""}), HasSubstr("\nbf16\t\n"));
  EXPECT_THAT(after({"train", "--set", "label_sm"}), HasSubstr("\nlabel_smoothing=\t"));
  EXPECT_EQ(after({"serve", "--model", "ru"}), "\n:directories\t\t\n");
  EXPECT_EQ(after({"serve", "--model", "cats=ru"}), "\n:directories\tcats=\t\n");
  EXPECT_EQ(after({"serve", "--tls-key", ""}), "\n:files\t\t\n");
  EXPECT_EQ(after({"serve", "--admin", "u"}), "\nunix:\t\n");
  EXPECT_EQ(after({"serve", "--admin", "unix:/ru"}), "\n:files\tunix:\t\n");
  EXPECT_EQ(after({"completion", "z"}), "\nzsh\t\n");
  EXPECT_THAT(after({"man", "cla"}), HasSubstr("\nclassify\t"));
}

// In bash and zsh, whose ways differ in nothing that is asked here.
void drive(test::Shell& shell) {
  EXPECT_EQ(shell.completed("vitrum classi"), "<vitrum><classify>");
  EXPECT_EQ(shell.completed("vitrum classify x.jpg --exif"),
            "<vitrum><classify><x.jpg><--exif-orientation>");
  EXPECT_EQ(shell.completed("vitrum summary vit_large_patch32_3"),
            "<vitrum><summary><vit_large_patch32_384>");
  EXPECT_EQ(shell.completed("vitrum train --model vit_large_patch32_3"),
            "<vitrum><train><--model><vit_large_patch32_384>");
  EXPECT_EQ(shell.completed("vitrum train --model=vit_large_patch32_3"),
            "<vitrum><train><--model=vit_large_patch32_384>");
  EXPECT_EQ(shell.completed("vitrum train --recipe re"), "<vitrum><train><--recipe><recipe.toml>");
  EXPECT_EQ(shell.completed("vitrum train --recipe=re"), "<vitrum><train><--recipe=recipe.toml>");
  EXPECT_EQ(shell.completed("vitrum eval --data fo"), "<vitrum><eval><--data><folder:>");
  EXPECT_EQ(shell.completed("vitrum eval --data folder:ph"),
            "<vitrum><eval><--data><folder:photos/>");
  EXPECT_EQ(shell.completed("vitrum eval --data csv:la"), "<vitrum><eval><--data><csv:labels.csv>");
  EXPECT_EQ(shell.completed("vitrum classify my"), "<vitrum><classify><my photos/>");
  EXPECT_EQ(shell.completed("vitrum classify 'a b' photos/ca"),
            "<vitrum><classify><a b><photos/cat.jpg>");
  EXPECT_EQ(shell.completed("vitrum bench --device ref"), "<vitrum><bench><--device><reference>");
  EXPECT_EQ(shell.completed("vitrum bench --precision bf"), "<vitrum><bench><--precision><bf16>");
  EXPECT_EQ(shell.completed("vitrum no-such-verb --mod"), "<vitrum><no-such-verb><--mod>");
}

TEST_F(Completion, WorksInBash) {
  if (!installed("bash")) GTEST_SKIP() << "bash is not installed";
  test::Shell shell({"bash", "--norc", "--noprofile", "-i"}, dir_.path(),
                    "source <(vitrum completion bash)");
  drive(shell);
}

TEST_F(Completion, WorksInZsh) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  test::Shell shell(
      {"zsh", "-f", "-i"}, dir_.path(),
      "bindkey -e; unsetopt auto_remove_slash; autoload -Uz compinit; compinit -u -D; "
      "source <(vitrum completion zsh)");
  drive(shell);
}

// As a file of $fpath, the way packages install it.
TEST_F(Completion, WorksInZshFromAFolder) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  test::Shell shell({"zsh", "-f", "-i"}, dir_.path(),
                    "bindkey -e; mkdir f; vitrum completion zsh > f/_vitrum; "
                    "fpath=($PWD/f $fpath); autoload -Uz compinit; compinit -u -D");
  EXPECT_EQ(shell.completed("vitrum classi"), "<vitrum><classify>");
  EXPECT_EQ(shell.completed("vitrum bench --precision bf"), "<vitrum><bench><--precision><bf16>");
}

TEST_F(Completion, WorksInFish) {
  if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
  const std::string binary =
      std::filesystem::absolute(VITRUM_BINARY).lexically_normal().parent_path();
  const auto completed = [&](const std::string& line) {
    const std::string command = fmt::format(
        "cd '{}' && HOME=$PWD PATH={}:$PATH LC_ALL=C.UTF-8 fish --no-config -c 'vitrum completion "
        "fish | source; complete -C \"vitrum {}\"' > .out 2>&1",
        dir_.path(), binary, line);
    EXPECT_EQ(std::system(command.c_str()), 0) << line;
    return read_file(dir_ / ".out");
  };
  EXPECT_THAT(completed("classi"), testing::StartsWith("classify\tsay what images show"));
  EXPECT_THAT(completed("classify x.jpg --exif"), HasSubstr("--exif-orientation\t"));
  EXPECT_EQ(completed("train --model vit_large_patch32_3"), "vit_large_patch32_384\n");
  EXPECT_EQ(completed("train --model=vit_large_patch32_3"), "--model=vit_large_patch32_384\n");
  EXPECT_EQ(completed("train --recipe re"), "recipe.toml\n");
  EXPECT_EQ(completed("train --recipe=re"), "--recipe=recipe.toml\n");
  EXPECT_THAT(completed("eval --data f"),
              AllOf(HasSubstr("fashion-mnist\t"), HasSubstr("folder:\n")));
  EXPECT_EQ(completed("eval --data folder:ph"), "folder:photos/\n");
  EXPECT_EQ(completed("eval --data csv:la"), "csv:labels.csv\n");
  EXPECT_EQ(completed("classify my"), "my photos/\n");
  EXPECT_EQ(completed("bench --device ref"), "reference\n");
  EXPECT_EQ(completed("bench --precision bf"), "bf16\n");
}

}  // namespace
}  // namespace vitrum
