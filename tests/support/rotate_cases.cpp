// Rotary positions, gated activations, and what is held at zero.
#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {

void make(Maker& m, const Rotate&) {
  struct Case {
    int64_t images, prefix, patches, heads, head;
  };
  for (const auto& [images, prefix, patches, heads, head] : {Case{1, 0, 1, 1, 4},
                                                             {2, 1, 6, 3, 8},
                                                             {3, 5, 4, 2, 64},
                                                             {1, 5, 16, 6, 20},
                                                             {2, 0, 9, 1, 36}})
    for (const bool halves : {false, true})
      for (const bool inverse : {false, true}) {
        HostTensor table = m.normal({patches, head}, kF32);
        for (int64_t i = 0; i < patches * head; ++i) {  // of angles: no longer than 1
          double& x = table.values[static_cast<size_t>(i)];
          x = static_cast<float>(i % head < head / 2 ? std::cos(x) : std::sin(x));
        }
        m.add(Rotate{heads, prefix, halves, inverse}, halves ? "halves" : "neighbours",
              {m.normal({images, prefix + patches, 3 * heads * head}, m.compute), table},
              {m.blank({images, prefix + patches, 3 * heads * head}, m.compute)});
      }
}

static const std::vector<Shape> kGated = {{1, 1, 1}, {3, 5, 17}, {2, 7, 64}, {33, 2730}};

void make(Maker& m, const Gate&) {
  for (const Act act : {Act::kSilu, Act::kGelu})
    for (const Shape& y : kGated)
      m.add(Gate{act}, "", {m.normal(y.with_last(2 * y[-1]), m.compute, 2)},
            {m.blank(y, m.compute)});
}

void make(Maker& m, const GateBwd&) {
  for (const Act act : {Act::kSilu, Act::kGelu})
    for (const Shape& y : kGated)
      m.add(GateBwd{.act = act}, "",
            {m.normal(y, m.compute), m.normal(y.with_last(2 * y[-1]), m.compute, 2)},
            {m.blank(y.with_last(2 * y[-1]), m.compute)});
}

void make(Maker& m, const ClearRange&) {
  m.add(ClearRange{.first = 5, .count = 7}, "", {}, {Maker::needed(m.normal({20}, kF32))});
  m.add(ClearRange{.first = 192, .count = 192}, "", {}, {Maker::needed(m.normal({576}, kF32))});
}

}  // namespace vitrum::test
