// Sheets of pictures of a data set: names stand beside their rows.
#include "vitrum/data/contact_sheet.h"

#include <gtest/gtest.h>

#include "vitrum/data/canvas.h"
#include "vitrum/data/memory_dataset.h"

namespace vitrum {
namespace {

// Two black images of 4 x 4 a class.
MemoryDataset data_of(const std::vector<std::string>& classes) {
  MemoryData data{.split = "train", .image_size = {1, 4, 4}, .classes = classes};
  data.pixels.assign(classes.size() * 2 * 16, 0);
  for (size_t i = 0; i < 2 * classes.size(); ++i)
    data.labels.push_back(static_cast<uint8_t>(i / 2));
  return MemoryDataset(std::move(data));
}

// Pixels of ink in a part of a picture.
int ink(const Image& image, int top, int left, int height, int width) {
  int n = 0;
  for (int y = top; y < top + height; ++y)
    for (int x = left; x < left + width; ++x) n += image.plane(0)[y * image.width + x] < 128;
  return n;
}

TEST(ContactSheet, ClassesStandBesideTheirRows) {
  const Image sheet = class_sheet(data_of({"cat", "a hippopotamus"}));
  ASSERT_EQ(sheet.channels, 3);
  const int left = sheet.width - (10 * 68 + 4);  // ten pictures of 64 pixels, with gaps of 4
  EXPECT_NEAR(left, text_width("a hippopotamus", 11) + 8, 2);
  const int first = ink(sheet, 4, 0, 64, left), second = ink(sheet, 72, 0, 64, left);
  EXPECT_GT(first, 20);
  EXPECT_GT(second, 2 * first);
  EXPECT_EQ(ink(sheet, 4, left + 4, 64, 64), 64 * 64) << "the picture itself";
  EXPECT_EQ(sheet.height, 2 * 68 + 4);
}

TEST(ContactSheet, LongNamesAreCutAndManyClassesCounted) {
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back("class " + std::to_string(i));
  const Image many = class_sheet(data_of(names));
  EXPECT_GT(many.height, 32 * 68 + 4);
  EXPECT_GT(ink(many, 32 * 68 + 4, 0, many.height - 32 * 68 - 4, many.width), 50);
  EXPECT_LT(class_sheet(data_of({std::string(500, 'W')})).width, 10 * 68 + 4 + 200);
  EXPECT_GT(class_sheet(data_of({"日本", "\xff"})).width, 0);
}

TEST(ContactSheet, AugmentedImagesHaveTheirClass) {
  const MemoryDataset named = data_of({"cat", "dog"}), other = data_of({"cow", "eel"});
  const Preprocess preprocess{.channels = 1, .height = 4, .width = 4};
  const Image sheet = augmented_sheet(named, preprocess, {}, 0);
  const int left = sheet.width - (8 * 100 + 4);
  ASSERT_GT(left, 0);
  for (int row = 0; row < 4; ++row) EXPECT_GT(ink(sheet, 4 + row * 100, 0, 96, left), 10) << row;
  EXPECT_NE(augmented_sheet(other, preprocess, {}, 0).pixels, sheet.pixels);
}

}  // namespace
}  // namespace vitrum
