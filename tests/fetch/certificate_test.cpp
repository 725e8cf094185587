// Downloads from a server whose certificate nobody trusts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using namespace test;

// `openssl s_server` with a certificate that it signed itself.
TEST(Download, AnUntrustedCertificateIsRefused) {
  const test::TempDir dir;
  const auto shell = [&](const std::string& command) {
    return Process({"sh", "-c", "cd " + dir.path() + " && " + command}, dir / "o", dir / "e")
        .wait();
  };
  if (shell(
          "openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 2 -subj /CN=127.0.0.1 "
          "-addext subjectAltName=IP:127.0.0.1") != 0)
    GTEST_SKIP() << "needs openssl";
  Process server({"openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", dir / "c", "-key",
                  dir / "k", "-www"},
                 dir / "server", dir / "e");
  const auto line = [&] { return read_file(dir / "server"); };  // "ACCEPT 127.0.0.1:45678 PID=1"
  const std::string before = "ACCEPT 127.0.0.1:";
  if (!eventually([&] { return line().find('\n', line().find(before)) != std::string::npos; }))
    GTEST_SKIP() << "needs an openssl that says where it listens";
  const size_t at = line().find(before) + before.size();
  const std::string port = line().substr(at, line().find_first_not_of("0123456789", at) - at);
  setenv("HF_ENDPOINT", ("https://127.0.0.1:" + port).c_str(), 1);
  const auto download = [&] {
    return run_vitrum({"download", "owner/name", "--to", dir / "m"}, dir / "a");
  };
  const Finished refused = download();
  setenv("SSL_CERT_FILE", (dir / "c").c_str(), 1);
  const Finished trusted = download();  // a page of HTML
  unsetenv("SSL_CERT_FILE"), unsetenv("HF_ENDPOINT");
  EXPECT_EQ(refused.code, 1) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("certificate"));
  EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  EXPECT_FALSE(fs::exists(dir / "m"));
  EXPECT_THAT(trusted.err, HasSubstr("it is not a JSON array"));
}

}  // namespace
}  // namespace vitrum
