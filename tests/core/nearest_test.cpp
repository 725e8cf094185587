#include "vitrum/core/nearest.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace vitrum {
namespace {

const std::array<std::string, 3> kWords = {"train", "finetune", "explain"};

TEST(Nearest, IsOfferedForWhatLooksLikeATypingError) {
  EXPECT_EQ(nearest("trian", kWords), "train");
  EXPECT_EQ(nearest("FINETUNE", kWords), "finetune");
  EXPECT_EQ(nearest("explane", kWords), "explain");
  EXPECT_EQ(did_you_mean("trai", kWords), "; did you mean 'train'?");
  // Two letters in the wrong order are one mistake, which a word of three may have, not two.
  const std::array<std::string, 1> fit = {"fit"};
  EXPECT_EQ(nearest("fti", fit), "fit");
  EXPECT_FALSE(nearest("fxx", fit));
}

// A wrong guess is worse than none.
TEST(Nearest, IsNotOfferedForAnotherWord) {
  for (const char* word : {"quantum", "x", "", "summary-of-everything"}) {
    EXPECT_FALSE(nearest(word, kWords)) << word;
    EXPECT_EQ(did_you_mean(word, kWords), "") << word;
  }
}

}  // namespace
}  // namespace vitrum
