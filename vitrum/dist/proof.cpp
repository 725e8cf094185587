#include "vitrum/dist/proof.h"

#include "vitrum/core/sha.h"

namespace vitrum {
namespace {

constexpr size_t kBlock = 64;  // bytes of SHA-256

uint8_t digit(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

Proof digest(std::string_view text) {
  const std::string hex = sha256(text);
  Proof bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return bytes;
}

std::string_view chars(const auto& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Proof hmac_sha256(std::string_view key, std::string_view text) {
  std::string padded(key);
  if (padded.size() > kBlock) padded = chars(digest(key));
  padded.resize(kBlock, '\0');
  std::string inner = padded, outer = padded;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  const Proof first = digest(inner.append(text));
  return digest(outer.append(chars(first)));
}

Proof prove(std::string_view secret, std::string_view role, const Nonce& a, const Nonce& b,
            std::string_view text) {
  std::string all(role);
  all.append(chars(a)).append(chars(b)).append(text);
  return hmac_sha256(secret, all);
}

bool same(const Proof& a, const Proof& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace vitrum
