#include <algorithm>

#include "tests/support/case_maker.h"

namespace vitrum::test {
namespace {

struct PoolCase {
  int64_t batch, tokens, heads, size;
  double deviation = 1;
};
// Heads of every family's size, lengths beside whole vectors, one of everything, and scores in the
// hundreds.
constexpr PoolCase kPoolCases[] = {
    {1, 1, 1, 1},    {2, 5, 3, 5},   {3, 17, 2, 16}, {1, 49, 4, 64},   {2, 33, 2, 72},
    {5, 196, 1, 64}, {1, 70, 1, 96}, {2, 130, 3, 8}, {3, 9, 2, 32, 8}, {1, 729, 1, 72}};

}  // namespace

void make(Maker& m, const AttendPool&) {
  for (const PoolCase& c : kPoolCases) {
    const int64_t width = c.heads * c.size;
    m.add(AttendPool{.heads = c.heads}, std::to_string(c.heads) + " heads",
          {m.normal({c.batch, c.tokens, 2 * width}, m.compute, c.deviation),
           m.normal({1, 1, width}, m.compute, c.deviation)},
          {m.needed(m.blank({c.batch, width}, m.compute))});
  }
}

// Where one token has it all, gradients of scores are differences of nearly equal numbers: not too
// sharp here.
void make(Maker& m, const AttendPoolBwd&) {
  for (PoolCase c : kPoolCases) {
    c.deviation = std::min(c.deviation, 1.5);
    const int64_t width = c.heads * c.size;
    const Shape kv{c.batch, c.tokens, 2 * width}, q{1, 1, width};
    m.add(AttendPoolBwd{.heads = c.heads}, std::to_string(c.heads) + " heads",
          {m.normal({c.batch, width}, m.compute), m.normal(kv, m.compute, c.deviation),
           m.normal(q, m.compute, c.deviation)},
          {m.blank(kv, m.compute), m.blank(q, m.compute)});
  }
}

// A table of parameters is f32 whatever is computed with.
void make(Maker& m, const Lookup&) {
  for (const Shape& ids : {Shape{1}, Shape{5}, Shape{2, 77}, Shape{3, 64}})
    for (const int64_t width : {1, 7, 64, 100})
      for (const DType table : {kF32, m.compute}) {
        Shape y = ids;
        y.append(width);
        m.add(Lookup{}, "", {m.normal({11, width}, table), m.below(ids, 11, kI32)},
              {m.needed(m.blank(y, m.compute))});
      }
  // Rows of a tensor of tokens.
  m.add(Lookup{}, "tokens", {m.normal({3, 5, 32}, m.compute), m.below({3}, 15, kI32)},
        {m.needed(m.blank({3, 32}, m.compute))});
}

}  // namespace vitrum::test
