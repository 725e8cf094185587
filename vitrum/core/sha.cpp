#include "vitrum/core/sha.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace vitrum {
namespace {

template <size_t N>
using Words = std::array<uint32_t, N>;

uint32_t big_endian(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

// The first 64 primes give SHA-256 its constants: fractional bits of their cube roots, of the first
// eight square roots.
template <size_t N>
Words<N> fractions_of_roots(double (*root)(double)) {
  Words<N> words;
  uint32_t candidate = 2;
  for (uint32_t& word : words) {
    for (uint32_t d = 2; d * d <= candidate; ++d)
      if (candidate % d == 0) ++candidate, d = 1;
    const double r = root(candidate++);
    word = static_cast<uint32_t>((r - std::floor(r)) * 0x1p32);
  }
  return words;
}

void step_256(Words<8>& state, const unsigned char* block) {
  static const Words<64> k = fractions_of_roots<64>(std::cbrt);
  Words<64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + k[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const Words<8> sum = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sum[i];
}

void step_1(Words<5>& state, const unsigned char* block) {
  Words<80> w;
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(block + 4 * i);
  for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state;
  for (size_t i = 0; i < 80; ++i) {
    const uint32_t parity = b ^ c ^ d;
    const uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999u
                           : i < 40 ? parity + 0x6ed9eba1u
                           : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdcu
                                    : parity + 0xca62c1d6u;
    const uint32_t next = std::rotl(a, 5) + mixed + e + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  const Words<5> sum = {a, b, c, d, e};
  for (size_t i = 0; i < 5; ++i) state[i] += sum[i];
}

// Both pad alike: a one bit, zeros, and the length in bits at the end of a 64-byte block.
template <size_t N>
std::string hash(Words<N> state, std::string_view bytes,
                 void (*step)(Words<N>&, const unsigned char*)) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / 64 * 64, rest = bytes.size() - whole;
  for (size_t at = 0; at < whole; at += 64) step(state, data + at);
  std::array<unsigned char, 128> tail{};
  if (rest > 0) std::memcpy(tail.data(), data + whole, rest);
  tail[rest] = 0x80;
  const size_t end = rest < 56 ? 64 : 128;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) tail[end - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
  for (size_t at = 0; at < end; at += 64) step(state, tail.data() + at);
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace

std::string sha256(std::string_view bytes) {
  return hash(fractions_of_roots<8>(std::sqrt), bytes, step_256);
}

std::string sha1(std::string_view bytes) {
  return hash<5>({0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u}, bytes, step_1);
}

}  // namespace vitrum
