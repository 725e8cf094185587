#include "vitrum/data/huffman.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace vitrum {
namespace {

constexpr size_t kSymbols = 257;  // the bytes, and the end of the block
constexpr size_t kEnd = 256;
constexpr int kLongest = 15;  // bits of a code, as the format has it

using Counts = std::array<uint32_t, kSymbols>;
using Lengths = std::array<int, kSymbols>;

// Depths of Huffman's tree. Symbols that do not occur have none.
Lengths depths(const Counts& counts) {
  struct Tree {
    uint64_t count;
    size_t node;
    bool operator>(const Tree& o) const {
      return count != o.count ? count > o.count : node > o.node;
    }
  };
  std::priority_queue<Tree, std::vector<Tree>, std::greater<>> trees;
  for (size_t s = 0; s < kSymbols; ++s)
    if (counts[s] > 0) trees.push({counts[s], s});
  std::array<size_t, 2 * kSymbols> parent{};
  size_t next = kSymbols;
  for (; trees.size() > 1; ++next) {
    uint64_t count = 0;
    for (int child = 0; child < 2; ++child, trees.pop())
      parent[trees.top().node] = next, count += trees.top().count;
    trees.push({count, next});
  }
  std::array<int, 2 * kSymbols> depth{};
  for (size_t node = next - 1; node-- > kSymbols;) depth[node] = depth[parent[node]] + 1;
  Lengths lengths{};
  for (size_t s = 0; s < kSymbols; ++s)
    if (counts[s] > 0) lengths[s] = depth[parent[s]] + 1;
  return lengths;
}

// A tree that is too deep becomes flatter as its counts become more alike.
Lengths code_lengths(Counts counts) {
  for (;;) {
    const Lengths lengths = depths(counts);
    if (*std::max_element(lengths.begin(), lengths.end()) <= kLongest) return lengths;
    for (uint32_t& count : counts)
      if (count > 0) count = count / 2 + 1;
  }
}

struct Code {
  uint32_t bits = 0;  // the first bit lowest
  int length = 0;
};

std::array<Code, kSymbols> codes_of(const Lengths& lengths) {
  std::array<Code, kSymbols> codes;
  uint32_t next = 0;
  for (int length = 1; length <= kLongest; ++length, next <<= 1)
    for (size_t s = 0; s < kSymbols; ++s) {
      if (lengths[s] != length) continue;
      codes[s].length = length;
      for (int bit = 0; bit < length; ++bit)
        codes[s].bits |= (next >> bit & 1) << (length - 1 - bit);
      ++next;
    }
  return codes;
}

class BitWriter {
 public:
  explicit BitWriter(size_t room) : out_(room, '\0') {}

  void put(uint32_t bits, int count) {  // at most 32
    held_ |= static_cast<uint64_t>(bits) << used_;
    used_ += count;
    if (used_ >= 32) flush(4);
  }
  void align() {
    used_ = (used_ + 7) / 8 * 8;
    while (used_ > 0) flush(1);
  }
  std::string take() { return out_.resize(at_), std::move(out_); }

 private:
  // Little-endian, as the machine is.
  void flush(size_t bytes) {
    std::memcpy(out_.data() + at_, &held_, bytes);
    at_ += bytes, held_ >>= 8 * bytes, used_ -= static_cast<int>(8 * bytes);
  }

  std::string out_;
  size_t at_ = 0;
  uint64_t held_ = 0;
  int used_ = 0;
};

// The lengths, each as four bits: a code of equal lengths for 0 to 15 and none for repetitions.
void put_header(BitWriter& out, const Lengths& lengths) {
  out.put(0, 5), out.put(0, 5), out.put(15, 4);  // 257 literals, 1 distance, 19 lengths of lengths
  for (int i = 0; i < 19; ++i) out.put(i < 3 ? 0 : 4, 3);  // the three for repetitions come first
  const auto reversed = [](int x) {
    return static_cast<uint32_t>((x & 1) << 3 | (x & 2) << 1 | (x & 4) >> 1 | (x & 8) >> 3);
  };
  for (const int length : lengths) out.put(reversed(length), 4);
  out.put(0, 4);  // no distances at all
}

}  // namespace

std::string deflate_literals(std::span<const uint8_t> bytes, bool last) {
  Counts counts{};
  for (const uint8_t byte : bytes) ++counts[byte];
  // Two symbols at least, so that each has a bit.
  ++counts[kEnd], counts[0] += counts[0] == 0;
  const Lengths lengths = code_lengths(counts);
  const std::array<Code, kSymbols> codes = codes_of(lengths);
  uint64_t bits = 0;
  for (size_t s = 0; s < kSymbols; ++s)
    bits += uint64_t{counts[s]} * static_cast<uint64_t>(lengths[s]);
  BitWriter out(bits / 8 + 256);  // with room for the header
  constexpr uint32_t kDynamic = 2;
  out.put(last ? 1 : 0, 1), out.put(kDynamic, 2);
  put_header(out, lengths);
  for (const uint8_t byte : bytes) out.put(codes[byte].bits, codes[byte].length);
  out.put(codes[kEnd].bits, codes[kEnd].length);
  if (!last) out.put(0, 3);  // an empty stored block, which begins on a byte
  out.align();
  if (!last) out.put(0xFFFF0000u, 32);
  return out.take();
}

}  // namespace vitrum
