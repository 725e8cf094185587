// EXPECT_ERROR(statement, kind, part): the statement throws Error of that kind, in one line that
// contains `part`.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "vitrum/core/error.h"

#define EXPECT_ERROR(statement, expected_kind, part)                       \
  try {                                                                    \
    statement;                                                             \
    ADD_FAILURE() << "no error from " #statement;                          \
  } catch (const ::vitrum::Error& error) {                                 \
    EXPECT_EQ(error.kind(), expected_kind) << error.what();                \
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));                 \
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n"))); \
  }

namespace vitrum::test {

// The message of the usage error that `body` must end with.
inline std::string usage_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace vitrum::test
