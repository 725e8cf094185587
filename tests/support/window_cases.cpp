#include <algorithm>
#include <utility>

#include "tests/support/case_maker.h"

namespace vitrum::test {

namespace {
struct Window {
  int64_t h, w, heads, prefix = 0;
  int64_t tokens() const { return prefix + h * w; }
  Shape table() const { return {(2 * h - 1) * (2 * w - 1) + (prefix > 0 ? 3 : 0), heads}; }
  Shape bias() const { return {heads, tokens(), tokens()}; }
  std::string label() const {
    return std::to_string(prefix) + "+" + std::to_string(h) + "x" + std::to_string(w);
  }
};
}  // namespace
static const std::vector<Window> kWindows = {{1, 1, 1}, {2, 3, 1},    {7, 7, 3},   {4, 4, 17},
                                             {1, 5, 2}, {3, 4, 2, 1}, {2, 2, 3, 5}};

void make(Maker& m, const RelativeBias&) {
  for (const Window& w : kWindows)
    m.add(RelativeBias{w.h, w.w, w.prefix}, w.label(), {m.normal(w.table(), kF32)},
          {m.blank(w.bias(), kF32)});
}

void make(Maker& m, const RelativeBiasBwd&) {
  for (const Window& w : kWindows)
    m.add(RelativeBiasBwd{.window_h = w.h, .window_w = w.w, .prefix = w.prefix}, w.label(),
          {m.normal(w.bias(), kF32)}, {m.normal(w.table(), kF32)});
}

// `to` tokens of `from`, no one twice, some of none.
static std::vector<int32_t> some_order(Maker& m, int64_t from, int64_t to) {
  std::vector<std::pair<double, int32_t>> drawn;
  for (int64_t i = 0; i < std::max(from, to); ++i)
    drawn.emplace_back(m.uniform(), i < from ? static_cast<int32_t>(i) : -1);
  std::ranges::sort(drawn);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < to; ++i) order.push_back(drawn[static_cast<size_t>(i)].second);
  return order;
}

void make(Maker& m, const GatherTokens&) {
  struct Case {
    int64_t images, tokens, taken, width;
  };
  for (const auto& [images, tokens, taken, width] :
       {Case{1, 1, 1, 1}, {3, 7, 9, 5}, {2, 16, 16, 96}, {5, 33, 12, 17}, {2, 49, 64, 32}})
    m.add(GatherTokens{tokens, width, some_order(m, tokens, taken)}, "",
          {m.normal({images, tokens, width}, m.compute)},
          {m.blank({images, taken, width}, m.compute)});
  // Runs of neighbours, and tokens four times as wide as they were.
  m.add(GatherTokens{8, 24, {2, 3, 4, -1, -1, 7, 0, 1}}, "runs", {m.normal({3, 8, 24}, m.compute)},
        {m.blank({3, 2, 96}, m.compute)});
}

}  // namespace vitrum::test
