#include "vitrum/serve/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "vitrum/core/base64.h"
#include "vitrum/serve/framing.h"
#include "vitrum/serve/multipart.h"
#include "vitrum/serve/router.h"

namespace vitrum::serve {
namespace {

TEST(ServeHttp, TargetsAreSplitAndDecoded) {
  const auto t = parse_target("/v1/classify?top_k=3&model=a%20b+c&flag");
  ASSERT_TRUE(t);
  EXPECT_EQ(t->path, "/v1/classify");
  EXPECT_EQ(t->query.at("top_k"), "3");
  EXPECT_EQ(t->query.at("model"), "a b c");
  EXPECT_EQ(t->query.at("flag"), "");
  EXPECT_EQ(parse_target("/")->path, "/");
  EXPECT_EQ(parse_target("/v2/")->path, "/v2/");
}

TEST(ServeHttp, TargetsThatCouldBeReadInTwoWaysAreRefused) {
  for (const char* bad : {"", "v1", "//v1", "/v1//x", "/../etc", "/v1/..", "/v1/%2e%2e/x", "/%",
                          "/%4", "/%zz", "/a%00b", "/a%0d%0ab", "/x?y=%0a", "http://other/", "*"})
    EXPECT_FALSE(parse_target(bad)) << bad;
}

TEST(ServeHttp, ParametersOfHeaders) {
  const char* type = R"(multipart/form-data; charset=x; boundary="a \"b")";
  EXPECT_EQ(media_type(type), "multipart/form-data");
  EXPECT_EQ(header_parameter(type, "boundary"), "a \"b");
  EXPECT_EQ(header_parameter("form-data; name=a; filename=b.jpg", "filename"), "b.jpg");
  EXPECT_FALSE(header_parameter("form-data; name=\"a", "name"));
  EXPECT_FALSE(header_parameter("form-data", "name"));
}

std::string refusal(int minor, const std::vector<HeaderField>& fields) {
  return std::string(refuse_framing(minor, fields).value_or(""));
}

TEST(ServeHttp, FramingThatCouldSmuggleIsRefused) {
  const HeaderField host{"Host", "a"};
  EXPECT_EQ(refusal(1, {host}), "");
  EXPECT_EQ(refusal(1, {host, {"Content-Length", "3"}}), "");
  EXPECT_EQ(refusal(1, {host, {"transfer-encoding", "Chunked"}}), "");
  const std::vector<std::vector<HeaderField>> bad = {
      {},
      {host, host},
      {{"Host", ""}},
      {host, {"Content-Length", "3"}, {"Content-Length", "3"}},
      {host, {"Content-Length", "3"}, {"Transfer-Encoding", "chunked"}},
      {host, {"Transfer-Encoding", "chunked"}, {"Content-Length", "3"}},
      {host, {"Transfer-Encoding", "chunked, identity"}},
      {host, {"Transfer-Encoding", "gzip, chunked"}},
      {host, {"Transfer-Encoding", "xchunked"}},
      {host, {"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}},
      {host, {"Content-Length", "+3"}},
      {host, {"Content-Length", "3, 3"}},
      {host, {"Content-Length", "0x3"}},
      {host, {"Content-Length", ""}},
      {host, {"Content-Length", "99999999999999999999"}},
      {host, {"Content-Length ", "3"}},
      {host, {"X", "a\rb"}},
      {host, {"X\t", "a"}},
  };
  for (const auto& fields : bad) EXPECT_NE(refusal(1, fields), "") << &fields - bad.data();
  EXPECT_NE(refusal(0, {host, {"Transfer-Encoding", "chunked"}}), "");
}

TEST(ServeMultipart, PartsAreViewsIntoTheBody) {
  const std::string body =
      "--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n"
      "Content-Type: image/png\r\n\r\nab\r\n--y\r\ncd\r\n--x\r\n"
      "content-disposition: form-data; name=top_k\r\n\r\n\r\n--x--\r\n";
  const std::vector<Part> parts = parse_multipart(body, "x", 4);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "image");
  EXPECT_EQ(parts[0].file_name, "a.png");
  EXPECT_EQ(parts[0].type, "image/png");
  EXPECT_EQ(parts[0].data, "ab\r\n--y\r\ncd");
  EXPECT_EQ(parts[1].name, "top_k");
  EXPECT_EQ(parts[1].data, "");
}

TEST(ServeMultipart, WhatIsNotWellFormedIsNamed) {
  const auto fails = [](const std::string& body, const std::string& boundary, const char* part) {
    EXPECT_ERROR(parse_multipart(body, boundary, 2), ErrorKind::kInput, part);
  };
  fails("", "x", "does not begin");
  fails("--x", "x", "no end");
  fails("--x\r\nA: b\r\n\r\ndata", "x", "no end");
  fails("--x junk\r\n\r\n--x--", "x", "behind a boundary");
  fails("--x--", "", "boundary");
  fails("--x--", std::string(71, 'b'), "boundary");
  fails("--x\r\nA: " + std::string(5000, 'a') + "\r\n\r\n\r\n--x--", "x", "too long");
  fails("--x\r\n\r\n\r\n--x\r\n\r\n\r\n--x\r\n\r\n\r\n--x--", "x", "more than 2");
  fails("--x\r\nContent-Transfer-Encoding: base64\r\n\r\n\r\n--x--", "x", "must be binary");
  EXPECT_EQ(
      parse_multipart("--x\r\nContent-Transfer-Encoding: binary\r\n\r\n\r\n--x--", "x", 2).size(),
      1u);
  EXPECT_TRUE(parse_multipart("--x--", "x", 2).empty());
}

TEST(ServeRouter, FindsByMethodAndPattern) {
  Router router;
  router.add({.method = "GET", .pattern = "/", .handle = {}});
  router.add({.method = "GET", .pattern = "/v2/models/{model}", .handle = {}});
  router.add({.method = "POST", .pattern = "/v2/models/{model}/infer", .handle = {}});
  EXPECT_EQ(router.find("GET", "/").route->pattern, "/");
  EXPECT_EQ(router.find("HEAD", "/").route->pattern, "/");
  EXPECT_EQ(router.find("HEAD", "/v2/models/a/infer").route, nullptr);
  EXPECT_EQ(router.find("GET", "/v2/models/a b").parameters.at("model"), "a b");
  EXPECT_EQ(router.find("POST", "/v2/models/a/infer").route->method, "POST");
  EXPECT_EQ(router.find("GET", "/v2/models/a/infer").route, nullptr);
  EXPECT_EQ(router.find("GET", "/v2/models/a/infer").allowed, "POST");
  for (const char* none :
       {"/v2", "/v2/models", "/v2/models/", "/v2/models/a/infer/x", "/v2/models/a/"})
    EXPECT_EQ(router.find("GET", none).route, nullptr) << none;
}

TEST(Base64, ReadsWhatItWroteAndNothingElse) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd", "\xff\xfe\xfd\0x"})
    EXPECT_EQ(from_base64(base64(text)), text);
  for (const char* bad :
       {"a", "ab", "abc", "a===", "====", "ab=c", "ab==cd==", "aa=a", "a b=", "aab=", "-_=="})
    EXPECT_FALSE(from_base64(bad)) << bad;
}

}  // namespace
}  // namespace vitrum::serve
