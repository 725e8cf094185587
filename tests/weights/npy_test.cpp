#include "vitrum/weights/npy.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"

namespace vitrum::test {
namespace {

TEST(Npy, RoundTrip) {
  const TempDir dir;
  const std::vector<float> values = {1, -2.5f, 3e-30f, 4, 5, 6};
  for (const Shape& shape : {Shape{6}, Shape{2, 3}, Shape{1, 3, 1, 2}}) {
    write_npy(dir / "a.npy", shape, values);
    const NpyArray back = read_npy(dir / "a.npy");
    EXPECT_EQ(back.shape, shape);
    EXPECT_EQ(back.values, values);
  }
}

TEST(Npy, RefusesWhatItCannotUse) {
  const TempDir dir;
  const std::string path = dir / "a.npy";
  const std::vector<float> values(6, 1.f);
  write_npy(path, {2, 3}, values);
  const std::string good = read_file(path);
  const auto refuses = [&](std::string bytes, const char* why) {
    write_file_atomic(path, bytes);
    EXPECT_ERROR(read_npy(path), ErrorKind::kInput, why);
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  refuses("", "npy");
  refuses("PK\x03\x04 something else", "not a .npy file");
  refuses(good.substr(0, 40), "truncated .npy header");
  refuses(good.substr(0, good.size() - 1), "needs 24");
  refuses(good + "x", "needs 24");
  refuses(with("<f4", "<f8"), "float32");
  refuses(with("False", "True "), "C order");
  refuses(with("2, 3", "0, 3"), "cannot be used");
  refuses(with("2, 3", "-2,3"), "cannot be used");
  refuses(with("2, 3, ", "9999999999999, 9999999999999"), "cannot be used");
  refuses(with("'shape'", "'shave'"), "unexpected key \"shave\"");
  refuses(with("'shape'", "'descr'"), "unexpected key");
  refuses(with("(2, 3, )", "2       "), "broken near");
}

}  // namespace
}  // namespace vitrum::test
