// That somebody knows a secret, without telling it: HMAC-SHA256 over numbers drawn by both sides.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrum {

using Nonce = std::array<uint8_t, 16>;
using Proof = std::array<uint8_t, 32>;

Proof hmac_sha256(std::string_view key, std::string_view text);

// `role` keeps one side's proof from being the other's.
Proof prove(std::string_view secret, std::string_view role, const Nonce& a, const Nonce& b,
            std::string_view text);
bool same(const Proof& a, const Proof& b);  // in the same time whatever they are

}  // namespace vitrum
