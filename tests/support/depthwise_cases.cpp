#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {
namespace {

struct Case {
  Shape x;
  int64_t kernel, padding;

  Shape y() const {
    return {x[0], x[1] + 2 * padding - kernel + 1, x[2] + 2 * padding - kernel + 1, x[3]};
  }
  Shape w() const { return {x[3], 1, kernel, kernel}; }
  std::string label() const { return std::to_string(kernel) + "+" + std::to_string(padding); }
};
const std::vector<Case> kCases = {
    {{1, 1, 1, 1}, 7, 3},    {{2, 7, 7, 16}, 7, 3},   {{3, 5, 9, 17}, 7, 3},
    {{1, 14, 14, 96}, 7, 3}, {{2, 10, 23, 40}, 7, 3}, {{1, 9, 8, 5}, 7, 0},
    {{2, 6, 5, 33}, 3, 1},   {{1, 4, 4, 3}, 5, 2},    {{2, 8, 3, 20}, 1, 0},
    {{40, 6, 6, 24}, 7, 3},  {{120, 3, 15, 34}, 7, 3}};

HostTensor weight_of(Maker& m, const Case& c) {
  return m.normal(c.w(), kF32, 1 / static_cast<double>(c.kernel));
}

const std::vector<Shape> kImages = {{1, 1, 1},     {2, 3, 5},        {3, 7, 7, 17}, {1, 28, 9, 40},
                                    {5, 2, 3, 64}, {2, 14, 14, 384}, {1, 700, 3},   {9, 4, 4, 100}};

struct Heads {
  Shape x;
  int64_t heads, parts, unit;
  bool scale;
};
const std::vector<Heads> kHeads = {
    {{1, 1, 3}, 1, 3, 2, true},     {{2, 5, 96}, 1, 3, 2, true}, {{3, 4, 90}, 3, 3, 2, true},
    {{2, 49, 288}, 3, 3, 2, true},  {{7, 17}, 1, 1, 1, false},   {{5, 2, 72}, 2, 3, 3, false},
    {{1, 300, 192}, 2, 3, 2, true}, {{6, 40}, 5, 1, 1, true},    {{9, 64, 24}, 4, 3, 1, true},
};
// Some scales are past the most that counts.
HostTensor scales(Maker& m, const Heads& h) {
  HostTensor t = h.scale ? m.normal({h.heads, 1, 1}, kF32, 1, 2) : m.none();
  if (t.values.size() > 2) t.values[1] = 5;
  return t;
}

}  // namespace

void make(Maker& m, const DepthwiseConv&) {
  for (const Case& c : kCases)
    for (const bool bias : {true, false})
      m.add(DepthwiseConv{.padding = c.padding}, c.label(),
            {m.normal(c.x, m.compute), weight_of(m, c), bias ? m.normal({c.x[3]}, kF32) : m.none()},
            {m.blank(c.y(), m.compute)});
}

void make(Maker& m, const DepthwiseConvBwd&) {
  for (const Case& c : kCases)
    m.add(DepthwiseConvBwd{.padding = c.padding}, c.label(),
          {m.normal(c.y(), m.compute), m.normal(c.x, m.compute), weight_of(m, c)},
          {m.blank(c.x, m.compute), m.normal(c.w(), kF32), m.normal({c.x[3]}, kF32)});
}

void make(Maker& m, const ResponseNorm&) {
  for (const float eps : {1e-6f, 0.5f})  // one that rounding hides, and one that it does not
    for (const Shape& s : kImages)
      m.add(ResponseNorm{eps}, "",
            {m.normal(s, m.compute, 2, 0.5), m.normal({s[-1]}, kF32), m.normal({s[-1]}, kF32)},
            {m.blank(s, m.compute), m.blank({s[0], s[-1]}, kF32)});
}

void make(Maker& m, const ResponseNormBwd&) {
  for (const Shape& s : kImages) {
    HostTensor x = m.normal(s, m.compute, 2, 0.5);
    // A channel that is zero all over has no direction.
    for (size_t i = 0; s[-1] > 2 && i < x.values.size(); i += static_cast<size_t>(s[-1]))
      x.values[i] = 0;
    const HostTensor w = m.normal({s[-1]}, kF32), bias = m.normal({s[-1]}, kF32);
    const auto y = m.forward(ResponseNorm{1e-6f}, {x, w, bias},
                             {m.blank(s, m.compute), m.blank({s[0], s[-1]}, kF32)});
    m.add(ResponseNormBwd{.eps = 1e-6f}, "", {m.normal(s, m.compute), x, w, y[1]},
          {m.blank(s, m.compute), m.normal({s[-1]}, kF32), m.normal({s[-1]}, kF32)});
  }
}

void make(Maker& m, const UnitHeads&) {
  for (const Heads& h : kHeads)
    m.add(UnitHeads{h.heads, h.parts, h.unit}, h.scale ? "scaled" : "",
          {m.normal(h.x, m.compute), scales(m, h)}, {m.blank(h.x, m.compute)});
}

void make(Maker& m, const UnitHeadsBwd&) {
  for (const Heads& h : kHeads)
    m.add(UnitHeadsBwd{.heads = h.heads, .parts = h.parts, .unit = h.unit}, h.scale ? "scaled" : "",
          {m.normal(h.x, m.compute), m.normal(h.x, m.compute), scales(m, h)},
          {m.blank(h.x, m.compute), h.scale ? m.normal({h.heads, 1, 1}, kF32) : m.none()});
}

}  // namespace vitrum::test
