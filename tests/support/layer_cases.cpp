#include <array>
#include <cmath>
#include <numeric>

#include "tests/support/case_maker.h"
#include "vitrum/graph/act.h"

namespace vitrum::test {

static std::string label_of(Act act) {
  switch (act) {
    case Act::kNone: return "";
    case Act::kGelu: return "gelu";
    case Act::kGeluTanh: return "gelu_tanh";
    case Act::kQuickGelu: return "quick_gelu";
    case Act::kSilu: return "silu";
    case Act::kSigmoid: return "sigmoid";
    case Act::kRelu: return "relu";
  }
  return "?";
}
static std::string label_of(Act act, float drop) {
  return label_of(act) + (drop > 0 ? " drop" : "");
}

// ---- embedding ----
static const std::vector<Shape> kImages = {
    {1, 1, 28, 28}, {3, 3, 32, 16}, {2, 4, 7, 21}, {5, 3, 56, 56}};

void make(Maker& m, const Normalize&) {
  for (const Shape& s : kImages) {
    const HostTensor scale = m.normal({s[1]}, kF32, 0.01), shift = m.normal({s[1]}, kF32);
    m.add(Normalize{}, "u8", {m.below(s, 256, DType::kU8), scale, shift}, {m.blank(s, m.compute)});
    m.add(Normalize{}, "f32", {m.normal(s, kF32, 100), scale, shift}, {m.blank(s, m.compute)});
  }
}

// Rows of all kinds: mixed, pasted, left alone, with a box past no border and over all of the
// image.
void make(Maker& m, const Mix&) {
  for (const Shape& s : kImages) {
    HostTensor mix{.shape = {s[0], 6}, .dtype = kF32};
    for (int64_t b = 0; b < s[0]; ++b) {
      const auto partner = static_cast<double>(s[0] - 1 - b), h = static_cast<double>(s[2]),
                 w = static_cast<double>(s[3]);
      const std::array<std::array<double, 6>, 5> kinds = {{{partner, 0.625, 0, 0, 0, 0},
                                                           {partner, 1, 1, h - 2, 3, w - 1},
                                                           {partner, 1, 0, h, 0, w},
                                                           {partner, 1, 2, 2, 0, w},
                                                           {partner, 0.25, 0, 3, 2, w}}};
      const auto& row = kinds[static_cast<size_t>(b + s[2]) % kinds.size()];
      mix.values.insert(mix.values.end(), row.begin(), row.end());
    }
    m.add(Mix{}, "", {m.below(s, 256, DType::kU8), mix}, {m.blank(s, kF32)});
  }
}

// Rows of all kinds: as it is, shifted far and near, mirrored, with boxes in a corner, of one odd
// pixel and over everything, shifted out of sight, and none. Streams start anywhere in a block.
void make(Maker& m, const TakeImages&) {
  for (const Shape& s : kImages) {
    const int64_t batch = 9, h = s[2], w = s[3];
    HostTensor rows{.shape = {batch, 16}, .dtype = kI32};
    const std::array<std::array<int64_t, 8>, 9> kinds = {{{0, 0, 0, 0, 0, 0, 0, 0},
                                                          {0, 3, -2, 0, 0, 0, 0, 0},
                                                          {0, -4, 5, 1, 2, 1, h - 3, w - 2},
                                                          {0, 0, 0, 1, h - 1, w - 1, 1, 1},
                                                          {0, 1, 1, 0, 0, 0, h, w},
                                                          {0, h, 0, 0, 0, 0, 3, 3},
                                                          {0, 0, -w - 4, 1, 1, 0, 3, 5},
                                                          {-1, 2, 2, 1, 0, 0, 0, 0},
                                                          {0, 2, 2, 1, 5, 5, 0, 0}}};
    const HostTensor words = m.below({batch, 8}, 1 << 30, kI32),
                     which = m.below({batch}, s[0], kI32);
    for (size_t b = 0; b < kinds.size(); ++b) {
      rows.values.insert(rows.values.end(), kinds[b].begin(), kinds[b].end());
      if (kinds[b][0] == 0) rows.values[b * 16] = which.values[b];
      rows.values.insert(rows.values.end(), &words.values[b * 8], &words.values[b * 8] + 8);
    }
    const HostTensor images = m.below(s, 256, DType::kU8),
                     noise = m.below({s[1], 4096}, 256, DType::kU8),
                     out = m.blank({batch, s[1], h, w}, DType::kU8);
    m.add(TakeImages{}, "colour", {images, rows, m.none()}, {out});
    m.add(TakeImages{}, "noise", {images, rows, noise}, {out});
  }
}

void make(Maker& m, const Patchify&) {
  struct Patch {
    Shape image;
    int64_t h, w;
  };
  const Patch patches[] = {{{2, 1, 28, 28}, 7, 7},   {{3, 3, 32, 16}, 4, 16},
                           {{1, 3, 33, 17}, 33, 1},  {{2, 4, 7, 21}, 1, 3},
                           {{5, 3, 56, 56}, 14, 14}, {{2, 2, 3, 5}, 1, 1},
                           {{2, 3, 8, 24}, 2, 4},    {{3, 3, 5, 24}, 1, 1}};
  for (const auto& [s, h, w] : patches)
    for (PatchOrder order : {PatchOrder::kChannelFirst, PatchOrder::kChannelLast}) {
      const std::string label = order == PatchOrder::kChannelFirst ? "CPP" : "PPC";
      const HostTensor y = m.blank({s[0], s[2] / h * (s[3] / w), s[1] * h * w}, m.compute);
      const HostTensor scale = m.normal({s[1]}, kF32, 0.01), shift = m.normal({s[1]}, kF32);
      const Patchify op{h, w, order};
      m.add(op, label + " u8", {m.below(s, 256, DType::kU8), scale, shift}, {y});
      m.add(op, label + " f32", {m.normal(s, kF32, 100), scale, shift}, {y});
      m.add(op, label + " plain", {m.normal(s, m.compute), m.none(), m.none()}, {y});
    }
}

namespace {
struct TokenCase {
  Shape x;
  std::vector<int64_t> prefix;  // tokens of each
  bool positions;
  int64_t tokens() const { return std::accumulate(prefix.begin(), prefix.end(), x[1]); }
};
}  // namespace
static const std::vector<TokenCase> kTokenCases = {
    {{1, 1, 1}, {}, true},       {{3, 7, 17}, {1}, true},    {{2, 16, 64}, {1}, false},
    {{5, 33, 65}, {1, 1}, true}, {{2, 196, 80}, {1}, true},  {{17, 3, 8}, {}, false},
    {{3, 9, 40}, {1, 4}, true},  {{2, 6, 11}, {3, 1}, false}};

void make(Maker& m, const Tokens&) {
  for (const TokenCase& c : kTokenCases) {
    const Shape& s = c.x;
    const Shape y{s[0], c.tokens(), s[2]};
    std::vector<HostTensor> in = {m.normal(s, m.compute),
                                  c.positions ? m.normal({1, y[1], y[2]}, kF32) : m.none()};
    for (const int64_t n : c.prefix) in.push_back(m.normal({1, n, s[2]}, kF32));
    m.add(Tokens{}, std::to_string(y[1] - s[1]) + " prefix", in, {m.blank(y, m.compute)});
  }
}

void make(Maker& m, const TokensBwd&) {
  for (const TokenCase& c : kTokenCases) {
    const Shape& s = c.x;
    const Shape y{s[0], c.tokens(), s[2]};
    std::vector<HostTensor> out = {m.blank(s, m.compute),
                                   c.positions ? m.normal({1, y[1], y[2]}, kF32) : m.none()};
    for (const int64_t n : c.prefix) out.push_back(m.normal({1, n, s[2]}, kF32));
    m.add(TokensBwd{.prefix = c.prefix}, std::to_string(y[1] - s[1]) + " prefix",
          {m.normal(y, m.compute)}, out);
  }
}

namespace {
struct PoolCase {
  Shape x;
  int64_t first, count;
};
}  // namespace
static const std::vector<PoolCase> kPoolCases = {{{1, 1, 1}, 0, 1},    {{3, 7, 17}, 0, 1},
                                                 {{3, 7, 17}, 1, 6},   {{2, 197, 80}, 1, 196},
                                                 {{5, 33, 65}, 0, 33}, {{7, 5, 64}, 3, 1}};

void make(Maker& m, const Pool&) {
  for (const auto& [s, first, count] : kPoolCases)
    m.add(Pool{first, count}, std::to_string(first) + "+" + std::to_string(count),
          {m.normal(s, m.compute)}, {m.blank({s[0], s[2]}, m.compute)});
}

void make(Maker& m, const PoolBwd&) {
  for (const auto& [s, first, count] : kPoolCases)
    m.add(PoolBwd{.first = first, .count = count},
          std::to_string(first) + "+" + std::to_string(count) + " of " + std::to_string(s[1]),
          {m.normal({s[0], s[2]}, m.compute)}, {m.blank(s, m.compute)});
}

// ---- linear ----
namespace {
struct LinearCase {
  Shape x;
  int64_t out;
  Act act = Act::kNone;
  float drop = 0;
  bool bias = true;
};
}  // namespace
static const std::vector<LinearCase> kLinearCases = {
    {{1, 1}, 1},
    {{3, 7}, 17},
    {{1, 3}, 10, Act::kNone, 0, false},
    {{3, 17, 33}, 65, Act::kGelu},
    {{3, 17, 33}, 65, Act::kGelu, 0.1f},
    {{2, 7, 65}, 33, Act::kGeluTanh, 0.5f, false},
    {{2, 33, 17}, 65, Act::kGeluTanh},
    {{3, 21, 40}, 48, Act::kQuickGelu},
    {{2, 9, 17}, 31, Act::kSilu, 0.25f},
    {{2, 5, 19}, 24, Act::kSigmoid},
    {{5, 13, 8}, 197, Act::kRelu},
    {{2, 65, 64}, 100, Act::kRelu, 0.1f},
    {{2, 7, 33}, 31, Act::kNone, 0.3f},
    {{128, 64}, 10},
    {{2, 197, 192}, 576},
    {{2, 197, 96}, 192, Act::kGelu},
    {{9, 17, 64}, 256, Act::kRelu, 0.1f, false},
    {{70, 160}, 200, Act::kGelu, 0.1f},  // few rows for its weights
    {{1, 5, 130}, 190, Act::kNone},
    // dw as its transpose, with x in place, and with both sides packed.
    {{3, 67, 136}, 64, Act::kGelu},
    {{2, 100, 64}, 64},
    {{3, 70, 330}, 70},
};

void make(Maker& m, const Linear&) {
  const auto weight = [&](const LinearCase& c) {
    return m.normal({c.out, c.x[-1]}, m.compute, 1 / std::sqrt(static_cast<double>(c.x[-1])));
  };
  for (const LinearCase& c : kLinearCases) {
    std::vector<HostTensor> out = {m.blank(c.x.with_last(c.out), m.compute)};
    if (slope_from(c.act) == SlopeFrom::kInput) out.push_back(out[0]);
    m.add(Linear{c.act, c.drop, 7}, label_of(c.act, c.drop),
          {m.normal(c.x, m.compute), weight(c), c.bias ? m.normal({c.out}, m.compute) : m.none(),
           m.rng_if(c.drop)},
          out)
        .aux_at_end = true;
  }
  const LinearCase head{{17, 65}, 100};  // logits stay f32
  m.add(Linear{}, "head",
        {m.normal(head.x, m.compute), weight(head), m.normal({100}, kF32), m.none()},
        {m.blank({17, 100}, kF32)});
  // Features that are handed out are f32, whatever the weights are.
  m.add(Linear{}, "of kept features",
        {m.normal(head.x, kF32), weight(head), m.normal({100}, kF32), m.none()},
        {m.blank({17, 100}, kF32)});
}

void make(Maker& m, const QLinear&) {
  for (const LinearCase& c : kLinearCases) {
    if (c.drop > 0) continue;
    m.add(QLinear{.act = c.act}, label_of(c.act, 0),
          {m.normal(c.x, m.compute),
           m.normal({c.out, c.x[-1]}, kF32, 1 / std::sqrt(static_cast<double>(c.x[-1]))),
           c.bias ? m.normal({c.out}, kF32) : m.none()},
          {m.blank(c.x.with_last(c.out), m.compute)});
  }
  // Of e4m3: widths that 32 divides.
  struct E4M3Case {
    Shape x;
    int64_t out;
    Act act;
    bool bias;
  };
  for (const E4M3Case& c :
       {E4M3Case{{2, 17, 32}, 96, Act::kNone, true}, E4M3Case{{3, 65, 192}, 256, Act::kGelu, true},
        E4M3Case{{1, 9, 160}, 288, Act::kNone, false}, E4M3Case{{1, 5, 96}, 64, Act::kSilu, true},
        E4M3Case{{1, 300, 416}, 512, Act::kQuickGelu, false}})
    m.add(QLinear{.act = c.act, .scale = 0.125f}, "e4m3 " + label_of(c.act, 0),
          {m.normal(c.x, DType::kE4M3, 8),
           m.normal({c.out, c.x[-1]}, kF32, 1 / std::sqrt(static_cast<double>(c.x[-1]))),
           c.bias ? m.normal({c.out}, kF32) : m.none()},
          {m.blank(c.x.with_last(c.out), m.compute)});
}

void make(Maker& m, const ToE4M3&) {
  // What is rounded to nothing, and what is larger than there are numbers for.
  for (const float scale : {1.0f, 0.125f, 32.0f})
    m.add(ToE4M3{.scale = scale}, "scale " + std::to_string(scale),
          {m.normal({3, 17, 96}, m.compute, 60)}, {m.blank({3, 17, 96}, DType::kE4M3)});
  m.add(ToE4M3{.scale = 0.25f}, "odd", {m.normal({5, 7}, m.compute, 0.01)},
        {m.blank({5, 7}, DType::kE4M3)});
}

void make(Maker& m, const LinearBwd&) {
  // Two heads have f32 logits, and so have their gradients.
  m.add(LinearBwd{}, "of f32 logits",
        {m.normal({17, 10}, kF32), m.normal({17, 64}, m.compute),
         m.normal({10, 64}, m.compute, 0.3), m.none(), m.none()},
        {m.blank({17, 64}, m.compute), m.normal({10, 64}, kF32), m.normal({10}, kF32)});
  for (const LinearCase& c : kLinearCases) {
    const Shape y = c.x.with_last(c.out);
    HostTensor saved = c.act == Act::kNone ? m.none() : m.normal(y, m.compute);
    if (c.act == Act::kRelu)
      for (double& v : saved.values) v = v > 0 ? v : 0;
    const double spread = 1 / std::sqrt(static_cast<double>(c.out));
    m.add(LinearBwd{.act = c.act, .drop = c.drop, .site = 7}, label_of(c.act, c.drop),
          {m.normal(y, m.compute), m.normal(c.x, m.compute),
           m.normal({c.out, c.x[-1]}, m.compute, spread), saved, m.rng_if(c.drop)},
          {m.blank(c.x, m.compute), m.normal({c.out, c.x[-1]}, kF32),
           c.bias ? m.normal({c.out}, kF32) : m.none()});
  }
}

// ---- element-wise ----
static const std::vector<Shape> kPlainShapes = {{1, 1},  {3, 7},       {7, 3, 17},
                                                {1, 33}, {2, 65, 197}, {5, 129, 64}};

void make(Maker& m, const Activation&) {
  for (Act act :
       {Act::kGelu, Act::kGeluTanh, Act::kRelu, Act::kQuickGelu, Act::kSilu, Act::kSigmoid})
    for (const Shape& s : kPlainShapes) {
      HostTensor x = m.normal(s, m.compute, 3);
      if (s.numel() > 8)  // far tails, where a rational or exponential form may overflow
        std::copy_n(std::array{-100., -20., -8., -0., 0., 8., 20., 100.}.begin(), 8,
                    x.values.begin());
      m.add(Activation{act}, label_of(act), {x}, {m.blank(s, m.compute)});
    }
}

void make(Maker& m, const ActivationBwd&) {
  for (Act act :
       {Act::kGelu, Act::kGeluTanh, Act::kRelu, Act::kQuickGelu, Act::kSilu, Act::kSigmoid})
    for (const Shape& s : kPlainShapes) {
      HostTensor x = m.normal(s, m.compute, 3);
      if (s.numel() > 8)
        std::copy_n(std::array{-100., -20., -8., -0., 0., 8., 20., 100.}.begin(), 8,
                    x.values.begin());
      m.add(ActivationBwd{.act = act}, label_of(act), {m.normal(s, m.compute), x},
            {m.blank(s, m.compute)});
    }
}

void make(Maker& m, const Add&) {
  for (const Shape& s : kPlainShapes)
    m.add(Add{}, "", {m.normal(s, m.compute), m.normal(s, m.compute)}, {m.blank(s, m.compute)});
}

void make(Maker& m, const ChannelScale&) {
  for (const Shape& s : kPlainShapes)
    m.add(ChannelScale{}, "", {m.normal(s, m.compute), m.normal({s[-1]}, kF32)},
          {m.blank(s, m.compute)});
}

void make(Maker& m, const ChannelScaleBwd&) {
  for (const Shape& s : kPlainShapes)
    m.add(ChannelScaleBwd{}, "",
          {m.normal(s, m.compute), m.normal(s, m.compute), m.normal({s[-1]}, kF32)},
          {m.blank(s, m.compute), m.normal({s[-1]}, kF32)});
}

void make(Maker& m, const Dropout&) {
  for (float drop : {0.1f, 0.5f, 0.97f})
    for (const Shape& s : kPlainShapes)
      m.add(Dropout{drop, 3}, std::to_string(drop), {m.normal(s, m.compute), m.rng()},
            {m.blank(s, m.compute)});
}

void make(Maker& m, const DropPath&) {
  for (const Shape& s : {Shape{1, 3, 7}, Shape{33, 17}, Shape{7, 3, 65}, Shape{17, 33, 64}})
    m.add(DropPath{0.4f, 5}, "", {m.normal(s, m.compute), m.rng()}, {m.blank(s, m.compute)});
}

// Nothing but one patch, everything, odd widths, more patches than threads of a block, and more
// than its usual share of memory.
namespace {
struct Kept {
  int64_t images, prefix, tokens, kept, width;  // kept: with the prefix
  Shape whole() const { return {images, tokens, width}; }
  TokenChoice choice(bool dropped) const {
    return {.prefix = prefix, .kept = kept - prefix, .site = 4, .dropped = dropped};
  }
  Shape part(bool dropped) const { return {images, choice(dropped).count(tokens), width}; }
};
}  // namespace
static const std::vector<Kept> kKept = {
    {1, 0, 1, 1, 1},   {3, 1, 8, 2, 5},     {5, 2, 67, 66, 16},   {4, 1, 65, 33, 192},
    {3, 0, 49, 49, 8}, {2, 1, 301, 76, 24}, {7, 1, 197, 50, 100}, {1, 1, 7000, 10, 4}};

// Both halves of a choice, where there are two.
template <class Visit>
static void each_choice(const Visit& visit) {
  for (const Kept& k : kKept)
    for (bool dropped : {false, true})
      if (k.part(dropped)[1] > 0) visit(k, dropped, dropped ? "dropped" : "");
}

void make(Maker& m, const KeepTokens&) {
  each_choice([&](const Kept& k, bool dropped, const char* label) {
    m.add(KeepTokens{k.choice(dropped)}, label, {m.normal(k.whole(), m.compute), m.rng()},
          {m.blank(k.part(dropped), m.compute), m.normal({1, 1, k.width}, kF32)})
        .aux_at_end = true;
  });
}

void make(Maker& m, const PlaceTokens&) {
  each_choice([&](const Kept& k, bool dropped, const char* label) {
    for (bool filled : {false, true})
      m.add(PlaceTokens{k.choice(dropped)}, std::string(label) + (filled ? " filled" : ""),
            {m.normal(k.part(dropped), m.compute), m.rng(),
             filled ? m.normal({1, 1, k.width}, kF32) : m.none()},
            {m.needed(m.blank(k.whole(), m.compute))});
  });
}

// ---- normalisation ----
static const std::vector<Shape> kNormShapes = {{1, 3},        {7, 3, 8},   {2, 3, 17},
                                               {1, 33},       {3, 17, 64}, {5, 7, 65},
                                               {2, 197, 192}, {131, 80},   {3, 1, 768}};

void make(Maker& m, const LayerNorm&) {
  for (bool bias : {true, false})
    for (const Shape& s : kNormShapes) {
      const HostTensor row = m.blank({s.rows()}, kF32);
      m.add(LayerNorm{1e-5f}, bias ? "" : "no bias",
            {m.normal(s, m.compute, 2, 3), m.normal({s[-1]}, kF32, 1, 1),
             bias ? m.normal({s[-1]}, kF32) : m.none()},
            {m.blank(s, m.compute), row, row})
          .aux_at_end = true;
    }
  // One column: the variance is zero, and the result is the bias.
  m.add(LayerNorm{1e-6f}, "flat",
        {m.normal({5, 1}, m.compute), m.normal({1}, kF32), m.normal({1}, kF32)},
        {m.blank({5, 1}, m.compute)});
  // A mean far from zero: a one-pass variance would cancel.
  m.add(LayerNorm{1e-6f}, "far",
        {m.normal({7, 192}, kF32, 1, 1000), m.normal({192}, kF32), m.none()},
        {m.blank({7, 192}, m.compute)});
}

void make(Maker& m, const AddLayerNorm&) {
  for (bool bias : {true, false})
    for (const Shape& s : kNormShapes) {
      const HostTensor y = m.blank(s, m.compute), row = m.blank({s.rows()}, kF32);
      m.add(AddLayerNorm{1e-6f}, bias ? "" : "no bias",
            {m.normal(s, m.compute, 2), m.normal(s, m.compute), m.normal({s[-1]}, kF32, 1, 1),
             bias ? m.normal({s[-1]}, kF32) : m.none()},
            {y, y, row, row});
    }
}

void make(Maker& m, const LayerNormBwd&) {
  for (bool skip : {true, false})
    for (const Shape& s : kNormShapes) {
      const HostTensor x = m.normal(s, m.compute, 2, 3), w = m.normal({s[-1]}, kF32, 1, 1);
      const HostTensor row = m.blank({s.rows()}, kF32);
      const auto y =
          m.forward(LayerNorm{1e-5f}, {x, w, m.none()}, {m.blank(s, m.compute), row, row});
      m.add(LayerNormBwd{}, skip ? "dskip" : "",
            {m.normal(s, m.compute), x, w, y[1], y[2], skip ? m.normal(s, m.compute) : m.none()},
            {m.blank(s, m.compute), m.normal({s[-1]}, kF32), m.normal({s[-1]}, kF32)});
    }
}

// ---- attention ----
namespace {
struct AttentionCase {
  int64_t batch, tokens, heads, size;
  float drop = 0;
};
}  // namespace
static const std::vector<AttentionCase> kAttentionCases = {
    {1, 1, 1, 8},    {2, 3, 3, 8, 0.1f},    {3, 17, 8, 8},  {5, 17, 8, 8, 0.1f},
    {2, 7, 2, 12},   {1, 33, 3, 12, 0.5f},  {2, 65, 2, 16}, {1, 65, 1, 16, 0.1f},
    {1, 197, 3, 64}, {1, 197, 1, 64, 0.1f}, {2, 33, 2, 80}, {1, 50, 1, 80, 0.2f},
    {1, 7, 1, 5},    {1, 16, 2, 32},        {3, 5, 1, 1}};

namespace {
struct BiasCase {
  int64_t batch, tokens, heads, size, masks;  // masks: 0 for none
  float drop = 0;
  bool bias = true;
};
}  // namespace
static const std::vector<BiasCase> kBiasCases = {{1, 2, 1, 8, 0},
                                                 {4, 4, 2, 8, 2, 0.1f},
                                                 {6, 16, 3, 32, 3},
                                                 {40, 9, 2, 24, 4},
                                                 {8, 49, 3, 32, 4},
                                                 {3, 49, 1, 32, 0, 0.2f},
                                                 {2, 64, 2, 16, 0},
                                                 {2, 70, 1, 64, 1},
                                                 {6, 16, 3, 32, 3, 0, false},
                                                 {20, 9, 2, 8, 4, 0.1f, false},
                                                 {2, 90, 1, 64, 2, 0, false},
                                                 {3, 144, 2, 32, 2},
                                                 {1, 197, 1, 64, 1},
                                                 {2, 81, 1, 24, 0, 0.1f},
                                                 {1, 130, 1, 128, 0}};

static std::string label_of(const BiasCase& c) {
  return std::to_string(c.heads) + " heads" + (c.bias ? " bias" : "") +
         (c.masks > 0 ? " mask" : "") + (c.drop > 0 ? " drop" : "");
}
static HostTensor bias_of(Maker& m, const BiasCase& c) {
  return c.bias ? m.normal({c.heads, c.tokens, c.tokens}, kF32, 0.3) : m.none();
}
static HostTensor mask_of(Maker& m, const BiasCase& c) {
  if (c.masks == 0) return m.none();
  HostTensor mask = m.below({c.masks, c.tokens, c.tokens}, 3, kF32);
  for (double& v : mask.values) v = v > 0 ? 0 : -100;
  for (int64_t i = 0; i < c.masks * c.tokens; ++i)  // a token always sees itself
    mask.values[static_cast<size_t>(i * c.tokens + i % c.tokens)] = 0;
  return mask;
}

void make(Maker& m, const Attention&) {
  for (const AttentionCase& c : kAttentionCases) {
    const int64_t width = c.heads * c.size;
    m.add(Attention{c.heads, c.drop, 11},
          std::to_string(c.heads) + " heads" + (c.drop > 0 ? " drop" : ""),
          {m.normal({c.batch, c.tokens, 3 * width}, m.compute), m.rng_if(c.drop)},
          {m.blank({c.batch, c.tokens, width}, m.compute),
           m.blank({c.batch, c.heads, c.tokens}, kF32)})
        .aux_at_end = true;
  }
  for (const BiasCase& c : kBiasCases) {
    const int64_t width = c.heads * c.size;
    m.add(Attention{c.heads, c.drop, 11}, label_of(c),
          {m.normal({c.batch, c.tokens, 3 * width}, m.compute), m.rng_if(c.drop), bias_of(m, c),
           mask_of(m, c)},
          {m.blank({c.batch, c.tokens, width}, m.compute),
           m.blank({c.batch, c.heads, c.tokens}, kF32)})
        .aux_at_end = true;
  }
  // Scores in the hundreds: exp without the maximum taken off would overflow.
  m.add(Attention{2, 0, 0}, "sharp", {m.normal({2, 9, 96}, m.compute, 8), m.none()},
        {m.blank({2, 9, 32}, m.compute), m.blank({2, 2, 9}, kF32)});
}

void make(Maker& m, const QAttention&) {
  for (const AttentionCase& c : kAttentionCases) {
    const int64_t width = c.heads * c.size;
    m.add(QAttention{.heads = c.heads}, std::to_string(c.heads) + " heads",
          {m.normal({c.batch, c.tokens, 3 * width}, m.compute), m.none()},
          {m.blank({c.batch, c.tokens, width}, m.compute)});
  }
  for (const BiasCase& c : kBiasCases)
    m.add(QAttention{.heads = c.heads}, label_of(c),
          {m.normal({c.batch, c.tokens, 3 * c.heads * c.size}, m.compute), m.none(), bias_of(m, c),
           mask_of(m, c)},
          {m.blank({c.batch, c.tokens, c.heads * c.size}, m.compute)});
}

void make(Maker& m, const AttentionProbs&) {
  for (const AttentionCase& c : kAttentionCases)
    m.add(AttentionProbs{.heads = c.heads}, std::to_string(c.heads) + " heads",
          {m.normal({c.batch, c.tokens, 3 * c.heads * c.size}, m.compute), m.none()},
          {m.needed(m.blank({c.batch, c.heads, c.tokens, c.tokens}, kF32))});
  m.add(AttentionProbs{.heads = 2}, "sharp", {m.normal({2, 9, 96}, m.compute, 8), m.none()},
        {m.needed(m.blank({2, 2, 9, 9}, kF32))});
  for (const bool masked : {false, true})
    m.add(AttentionProbs{.heads = 3}, masked ? "bias, mask" : "bias",
          {m.normal({6, 9, 3 * 24}, m.compute), m.none(), m.normal({3, 9, 9}, kF32),
           masked ? m.normal({2, 9, 9}, kF32, 3) : m.none()},
          {m.needed(m.blank({6, 3, 9, 9}, kF32))});
  m.add(AttentionProbs{.heads = 3}, "mask",
        {m.normal({6, 9, 3 * 24}, m.compute), m.none(), m.none(), m.normal({2, 9, 9}, kF32, 3)},
        {m.needed(m.blank({6, 3, 9, 9}, kF32))});
}

void make(Maker& m, const AttentionProbsGrad&) {
  for (const AttentionCase& c : kAttentionCases) {
    const Shape y{c.batch, c.tokens, c.heads * c.size};
    m.add(AttentionProbsGrad{.heads = c.heads}, std::to_string(c.heads) + " heads",
          {m.normal(y, m.compute), m.normal(y.with_last(3 * y[-1]), m.compute)},
          {m.needed(m.blank({c.batch, c.heads, c.tokens, c.tokens}, kF32))});
  }
}

void make(Maker& m, const AttentionBwd&) {
  for (const AttentionCase& c : kAttentionCases) {
    const int64_t width = c.heads * c.size;
    const Shape y{c.batch, c.tokens, width};
    const HostTensor qkv = m.normal(y.with_last(3 * width), m.compute), rng = m.rng_if(c.drop);
    const auto saved =
        m.forward(Attention{c.heads, c.drop, 11}, {qkv, rng},
                  {m.blank(y, m.compute), m.blank({c.batch, c.heads, c.tokens}, kF32)});
    m.add(AttentionBwd{.heads = c.heads, .drop = c.drop, .site = 11},
          std::to_string(c.heads) + " heads" + (c.drop > 0 ? " drop" : ""),
          {m.normal(y, m.compute), qkv, saved[0], saved[1], rng}, {m.blank(qkv.shape, m.compute)});
  }
  for (const BiasCase& c : kBiasCases) {
    const Shape y{c.batch, c.tokens, c.heads * c.size};
    const HostTensor qkv = m.normal(y.with_last(3 * y[2]), m.compute), rng = m.rng_if(c.drop),
                     bias = bias_of(m, c), mask = mask_of(m, c);
    const auto saved =
        m.forward(Attention{c.heads, c.drop, 11}, {qkv, rng, bias, mask},
                  {m.blank(y, m.compute), m.blank({c.batch, c.heads, c.tokens}, kF32)});
    m.add(AttentionBwd{.heads = c.heads, .drop = c.drop, .site = 11}, label_of(c),
          {m.normal(y, m.compute), qkv, saved[0], saved[1], rng, bias, mask},
          {m.blank(qkv.shape, m.compute), c.bias ? m.blank(bias.shape, kF32) : m.none()});
  }
}

}  // namespace vitrum::test
