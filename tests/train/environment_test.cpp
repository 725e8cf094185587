#include "vitrum/train/environment.h"

#include <gtest/gtest.h>

namespace vitrum {
namespace {

TEST(Environment, HasADigestOfWhatIsOpen) {
  EXPECT_EQ(program_digest().size(), 64u);
  EXPECT_EQ(library_digest("libc.so.6").size(), 64u);
  EXPECT_NE(library_digest("libc.so.6"), program_digest());
  EXPECT_EQ(library_digest("c.so.6"), "");
  EXPECT_EQ(library_digest("libvitrum_none.so"), "");
}

}  // namespace
}  // namespace vitrum
