// Man pages hold what --help holds, and the formatters that people have find nothing wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class Man : public testing::Test {
 protected:
  test::Finished run(const std::vector<std::string>& arguments) const {
    return test::run_vitrum(arguments, dir_ / "out");
  }
  // The names of verbs, as `vitrum --help` lists them.
  std::vector<std::string> verbs() const {
    std::istringstream help(run({"--help"}).out);
    std::vector<std::string> names;
    bool listed = false;
    for (std::string line; std::getline(help, line); listed = listed || line == "Verbs:")
      if (listed && line.starts_with("  ") && line[2] != ' ')
        names.push_back(line.substr(2, line.find(' ', 2) - 2));
    return names;
  }
  // Words of a help text that are options, as "--batch-size".
  static std::set<std::string> options_in(const std::string& help) {
    std::set<std::string> found;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("--");
      if (at != line.npos && at <= 6 && !line.starts_with("      --"))
        found.insert(line.substr(at, line.find_first_of(" ,", at) - at));
    }
    return found;
  }
  // What a formatter of man pages says about them; none where it is not installed.
  void expect_no_remarks(const std::string& tool, const std::string& options) const {
    if (std::system(fmt::format("command -v {} > /dev/null", tool).c_str()) != 0)
      GTEST_SKIP() << tool << " is not installed";
    ASSERT_EQ(run({"man", "--output", dir_ / "pages"}).code, 0);
    const std::string remarks = dir_ / "remarks";
    for (const auto& page : std::filesystem::directory_iterator(dir_ / "pages"))
      EXPECT_EQ(std::system(
                    fmt::format("{} {} {} >> {} 2>&1", tool, options, page.path().string(), remarks)
                        .c_str()),
                0)
          << page.path();
    EXPECT_EQ(read_file(remarks), "");
  }
  TempDir dir_;
};

TEST_F(Man, HasAPageForEveryVerbWithEveryOption) {
  ASSERT_EQ(run({"man", "--output", dir_ / "pages"}).code, 0);
  const std::string overview = read_file(dir_ / "pages/vitrum.1");
  ASSERT_GE(verbs().size(), 20u);
  for (const std::string& verb : verbs()) {
    const std::string page = read_file(dir_ / fmt::format("pages/vitrum-{}.1", verb));
    EXPECT_EQ(page, run({"man", verb}).out);
    EXPECT_THAT(overview, HasSubstr(".BR vitrum\\-" + verb + " (1)"));
    const std::set<std::string> options = options_in(run({verb, "--help"}).out);
    EXPECT_GE(options.size(), 6u) << verb;
    for (std::string option : options) {
      for (size_t at = 0; (at = option.find('-', at)) != option.npos; at += 2)
        option.insert(at, "\\");
      EXPECT_TRUE(page.find("\\fB" + option + "\\fR") != page.npos ||
                  page.find(", " + option + "\\fR") != page.npos)
          << verb << " " << option;
    }
  }
  EXPECT_THAT(run({"man"}).out, StartsWith(".TH VITRUM 1 \"20"));
}

TEST_F(Man, ReplacesItsOwnPagesOnly) {
  ensure_directory(dir_ / "pages");
  write_file_atomic(dir_ / "pages/vitrum.1", "a diary");
  EXPECT_EQ(run({"man", "--output", dir_ / "pages"}).code, 2);
  EXPECT_EQ(read_file(dir_ / "pages/vitrum.1"), "a diary");
  EXPECT_EQ(run({"man", "--output", dir_ / "pages", "--force"}).code, 0);
  EXPECT_EQ(run({"man", "--output", dir_ / "pages"}).code, 0);
  EXPECT_EQ(run({"man", "trian"}).code, 2);
  EXPECT_THAT(run({"man", "trian"}).err, HasSubstr("did you mean 'train'?"));
}

TEST_F(Man, IsCleanToGroff) { expect_no_remarks("groff", "-man -ww -z -Tutf8"); }
TEST_F(Man, IsCleanToMandoc) { expect_no_remarks("mandoc", "-Tlint -Wwarning"); }

}  // namespace
}  // namespace vitrum
