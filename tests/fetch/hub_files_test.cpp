// What needs no server: checksums, and which files a model of the hub has.
#include <gtest/gtest.h>

#include "vitrum/core/sha.h"
#include "vitrum/fetch/hub.h"

namespace vitrum {
namespace {

TEST(Sha, KnownVectors) {
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(sha1(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(sha1("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(sha1(two_blocks), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(sha1(std::string(1'000'000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  EXPECT_EQ(digest(DigestKind::kGitBlob, ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(digest(DigestKind::kGitBlob, "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(HubFiles, AreKnownByName) {
  for (const char* name :
       {"config.json", "open_clip_config.json", "open_clip_model.safetensors", "spiece.model",
        "model.safetensors.index.json", "model-00001-of-00002.safetensors", "x.0123.part"})
    EXPECT_TRUE(is_of_hub_model(name)) << name;
  for (const char* name : {"notes.txt", "model", "mymodel.safetensors", "model-/.safetensors"})
    EXPECT_FALSE(is_of_hub_model(name)) << name;
}

}  // namespace
}  // namespace vitrum
