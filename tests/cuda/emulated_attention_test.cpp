// Attention with whole heads in shared memory and of longer ones, and its gradient, run without a
// card: see support/emulated_card.h.
#include <gtest/gtest.h>

#include "tests/support/emulated_lowering.h"
// With what is above instead of the card's own: tests/CMakeLists.txt.
#include "vitrum/cuda/attention/chunked.cuh"
#include "vitrum/cuda/attention/chunked_bwd.cuh"
#include "vitrum/cuda/attention/smem_bwd.cuh"
#include "vitrum/cuda/attention/smem_fwd.cuh"

namespace vitrum::cuda {
namespace {

struct Size {
  int tokens, images, heads, parts;
  bool bias = false;
  int head = 64;  // values

  AttentionShape shape() const { return {tokens, heads, head}; }
};

class Heads {
 public:
  explicit Heads(const Size& s)
      : size_(s),
        qkv_(noise(3 * count(), 1)),
        dy_(noise(count(), 2)),
        y_(static_cast<size_t>(count())),
        out_(static_cast<size_t>(3 * count()), bf16{0xffff}),
        lse_(static_cast<size_t>(s.images * s.heads * s.tokens)),
        columns_(static_cast<size_t>(s.parts * wide()), NAN) {
    if (s.bias)
      for (const bf16 x : noise(int64_t{s.heads} * s.tokens * s.tokens, 3))
        bias_.push_back(static_cast<float>(value(x)));
    for (int image = 0; image < s.images; ++image)
      for (int head = 0; head < s.heads; ++head) forward(image, head);
  }

  void run(uint32_t most_late) {
    const int rows = (size_.tokens + 15) / 16 * 16;
    const AttentionArgs attention{.shape = size_.shape(),
                                  .qkv = qkv_.data(),
                                  .y = y_.data(),
                                  .dy = dy_.data(),
                                  .out = out_.data(),
                                  .lse = lse_.data(),
                                  .drop = {}};
    const PersistentArgs tile{attention, columns_.data(), size_.images, size_.parts};
    const auto boxes = [&](const std::vector<bf16>& of, int64_t columns, int box) {
      return rows_of_heads(of.data(), columns, size_.tokens, size_.images, box, size_.head);
    };
    if (size_.tokens > 208) {
      const chunked_bwd::ChunkedArgs args{.tile = tile,
                                          .qkv = boxes(qkv_, wide(), chunked_bwd::kBox),
                                          .dy = boxes(dy_, wide() / 3, chunked_bwd::kBox),
                                          .rows = rows};
      return run_blocks(most_late, kHeadThreads, chunked_bwd::Memory::bytes(rows),
                        [&] { chunked_bwd::backward(args); });
    }
    const smem::BackwardArgs args{.tile = tile,
                                  .qkv = boxes(qkv_, wide(), smem::kBox),
                                  .dy = boxes(dy_, wide() / 3, smem::kBox),
                                  .out = boxes(out_, wide(), smem::kBox),
                                  .whole = boxes(qkv_, wide(), rows),
                                  .rows = rows};
    if (size_.head == 32)
      return run_blocks(most_late, kHeadThreads, smem::Memory<32>::bytes(rows),
                        [&] { smem::backward<32>(args); });
    run_blocks(most_late, kHeadThreads, smem::Memory<64>::bytes(rows),
               [&] { smem::backward<64>(args); });
  }

  // Forward, in chunks of N keys, and what the reference has. Products have kSize values.
  template <int N, int kSize, bool kBiased = false>
  void check_chunked(uint32_t most_late) {
    const Forward run(*this);
    const int chunks = (size_.tokens + N - 1) / N;
    chunked::ChunkedArgs args{.tile = run.tile,
                              .wide = {},
                              .rest = {},
                              .chunks_a_head = chunks,
                              .rounds_a_head = rounds_of_chunks(size_.tokens, chunks)};
    chunked::set_maps(args, size_.shape(), qkv_.data(), run.y.data(), size_.images, N);
    args.bias = {nullptr, (size_.tokens + kTile - 1) / kTile * 4, chunks * N / 8};
    std::vector<FourScores> packed(kBiased ? static_cast<size_t>(args.bias.count(size_.heads)) : 0);
    args.bias.data = packed.data();
    for (size_t at = 0; at < packed.size(); ++at)
      pack_four(args.bias, bias_.data(), size_.tokens, std::sqrt(static_cast<float>(size_.head)),
                static_cast<int64_t>(at));
    run_blocks(most_late, kGroups * kGroup, sizeof(chunked::Memory<N, kSize>),
               [&] { chunked::forward<N, kSize, kBiased>(args); });
    run.check();
  }
  // With all keys in one product.
  template <int N, int kSize>
  void check_whole(uint32_t most_late) {
    const Forward run(*this);
    const auto boxes = [&](const std::vector<bf16>& of, int64_t columns, int box) {
      return rows_of_heads(of.data(), columns, size_.tokens, size_.images, box, kSize);
    };
    const smem_fwd::ForwardArgs args{.tile = run.tile,
                                     .qkv = boxes(qkv_, wide(), N),
                                     .y = boxes(run.y, wide() / 3, 16),
                                     .rounded = nullptr,
                                     .inverse = 1};
    run_blocks(most_late, kGroups * kGroup, sizeof(smem_fwd::Memory<N, kSize>),
               [&] { smem_fwd::forward<N, kSize>(args); });
    run.check();
  }

  void check() {
    for (int image = 0; image < size_.images; ++image)
      for (int head = 0; head < size_.heads; ++head) check_head(image, head);
    for (int column = 0; column < wide(); ++column) {
      double expected = 0, all = 0, sum = 0;
      for (size_t i = static_cast<size_t>(column); i < out_.size();
           i += static_cast<size_t>(wide()))
        expected += value(out_[i]), all += std::abs(value(out_[i]));
      for (int part = 0; part < size_.parts; ++part)
        sum += columns_[static_cast<size_t>(part * wide() + column)];
      ASSERT_NEAR(sum, expected, 1e-5 * (1 + all)) << column;
    }
  }

 private:
  // What a forward run writes, to be held against what the reference made.
  struct Forward {
    const Heads& of;
    std::vector<bf16> y = std::vector<bf16>(static_cast<size_t>(of.count()), bf16{0xffff});
    std::vector<float> lse = std::vector<float>(of.lse_.size(), NAN);
    PersistentArgs tile;

    explicit Forward(const Heads& heads)
        : of(heads),
          tile{{.shape = of.size_.shape(),
                .qkv = of.qkv_.data(),
                .out = y.data(),
                .lse = lse.data(),
                .drop = {}},
               nullptr,
               of.size_.images,
               of.size_.parts} {}
    // Weights are rounded, and results: at most to neighbours.
    void check() const {
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(value(y[i]), value(of.y_[i]), 0.002 + 0.008 * std::abs(value(of.y_[i]))) << i;
      for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], of.lse_[i], 1e-4f) << i;
    }
  };
  void run_blocks(uint32_t most_late, int threads, size_t bytes,
                  const std::function<void()>& body) const {
    ASSERT_LE(bytes, emulated::kSharedBytes);
    card.most_late = most_late, card.blocks = size_.parts * size_.heads;
    card.body = body;
    for (card.block = 0; card.block < card.blocks; ++card.block) ASSERT_NO_THROW(card.run(threads));
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(size_.head)); }
  static double value(bf16 x) { return from_bf16(x.bits); }
  static std::vector<bf16> noise(int64_t count, uint32_t stream) {
    PhiloxStream draw(7, stream, 0);
    std::vector<bf16> values(static_cast<size_t>(count));
    for (bf16& v : values) v = {to_bf16(static_cast<float>(draw.normal()))};
    return values;
  }
  int wide() const { return 3 * size_.heads * size_.head; }
  int64_t count() const { return int64_t{size_.images} * size_.tokens * wide() / 3; }
  // Where value 0 of a token is in y, and of q, k or v in qkv.
  size_t of_y(int image, int head, int token) const {
    return static_cast<size_t>((image * size_.tokens + token) * wide() / 3 + head * size_.head);
  }
  size_t of_qkv(int image, int head, int token, int which) const {
    return static_cast<size_t>((image * size_.tokens + token) * wide() + which * wide() / 3 +
                               head * size_.head);
  }
  double dot(const bf16* a, const bf16* b) const {
    double sum = 0;
    for (int i = 0; i < size_.head; ++i) sum += value(a[i]) * value(b[i]);
    return sum;
  }
  // The weights of a query, and the logarithm of what they were divided by.
  std::vector<double> weights(int image, int head, int query, double& lse) const {
    std::vector<double> p(static_cast<size_t>(size_.tokens));
    double sum = 0;
    for (int k = 0; k < size_.tokens; ++k) {
      double score =
          dot(&qkv_[of_qkv(image, head, query, 0)], &qkv_[of_qkv(image, head, k, 1)]) * scale();
      if (size_.bias)
        score += static_cast<double>(
            bias_[static_cast<size_t>((head * size_.tokens + query) * size_.tokens + k)]);
      sum += p[static_cast<size_t>(k)] = std::exp(score);
    }
    for (double& x : p) x /= sum;
    lse = std::log(sum);
    return p;
  }
  void forward(int image, int head) {
    for (int q = 0; q < size_.tokens; ++q) {
      double lse = 0;
      const std::vector<double> p = weights(image, head, q, lse);
      lse_[static_cast<size_t>((image * size_.heads + head) * size_.tokens + q)] =
          static_cast<float>(lse);
      for (size_t i = 0; i < static_cast<size_t>(size_.head); ++i) {
        double sum = 0;
        for (int k = 0; k < size_.tokens; ++k)
          sum += p[static_cast<size_t>(k)] * value(qkv_[of_qkv(image, head, k, 2) + i]);
        y_[of_y(image, head, q) + i] = {to_bf16(static_cast<float>(sum))};
      }
    }
  }
  // All of a matrix is as near as rounding allows; one wrong row is not.
  void check_head(int image, int head) const {
    const auto tokens = static_cast<size_t>(size_.tokens), values = static_cast<size_t>(size_.head);
    std::vector<double> expected(3 * tokens * values);
    for (int q = 0; q < size_.tokens; ++q) {
      double lse = 0, delta = 0;
      std::vector<double> p = weights(image, head, q, lse), d(tokens);
      for (size_t k = 0; k < tokens; ++k) {
        d[k] = dot(&dy_[of_y(image, head, q)], &qkv_[of_qkv(image, head, static_cast<int>(k), 2)]);
        delta += p[k] * d[k];
      }
      for (size_t k = 0; k < tokens; ++k)
        for (size_t i = 0; i < values; ++i) {
          const double ds = p[k] * (d[k] - delta) * scale();
          const auto of = [&](size_t which, size_t token) -> double& {
            return expected[(which * tokens + token) * values + i];
          };
          const int key = static_cast<int>(k);
          of(0, static_cast<size_t>(q)) += ds * value(qkv_[of_qkv(image, head, key, 1) + i]);
          of(1, k) += ds * value(qkv_[of_qkv(image, head, q, 0) + i]);
          of(2, k) += p[k] * value(dy_[of_y(image, head, q) + i]);
        }
    }
    for (size_t which = 0; which < 3; ++which) {
      double wrong = 0, all = 0;
      for (size_t at = 0; at < tokens * values; ++at) {
        const double x = expected[which * tokens * values + at];
        const double got =
            value(out_[of_qkv(image, head, static_cast<int>(at / values), static_cast<int>(which)) +
                       at % values]);
        wrong += (got - x) * (got - x), all += x * x;
      }
      ASSERT_LT(std::sqrt(wrong / all), 0.006)
          << "image " << image << " head " << head << " matrix " << which;
    }
  }

  Size size_;
  std::vector<bf16> qkv_, dy_, y_, out_;
  std::vector<float> lse_, columns_, bias_;
};

void expect_right(const Size& size, uint32_t most_late) {
  SCOPED_TRACE(size.tokens);
  Heads heads(size);
  heads.run(most_late);
  heads.check();
}

// Three warpgroups and the one that has what is over: a few rows of it, one and all.
TEST(EmulatedKernels, AttentionBackwardOfWholeHeads) {
  expect_right({197, 3, 1, 1}, 400);
  expect_right({193, 5, 1, 2}, 1000);
  expect_right({208, 2, 1, 1}, 30);
}

TEST(EmulatedKernels, AttentionBackwardOfShorterHeads) {
  expect_right({145, 3, 1, 2}, 400);
  expect_right({192, 1, 2, 1}, 30);
  expect_right({81, 4, 1, 1}, 1000);
}

// Chunks of 64 queries or keys alone and with some of 48; one image and several.
TEST(EmulatedKernels, AttentionBackwardOfLongHeads) {
  expect_right({209, 3, 1, 1}, 400);
  expect_right({256, 2, 1, 1}, 1000);
  expect_right({442, 1, 1, 1}, 30);
}

// Heads of 32, as a decoder of a masked autoencoder has.
TEST(EmulatedKernels, AttentionBackwardOfNarrowHeads) {
  expect_right({197, 3, 2, 1, false, 32}, 400);
  expect_right({208, 2, 1, 1, false, 32}, 1000);
  expect_right({81, 3, 1, 2, false, 32}, 30);
}

void expect_forward(const Size& size, uint32_t most_late) {
  SCOPED_TRACE(size.tokens);
  Heads heads(size);
  if (size.head > 64) {
    if (size.bias) return heads.check_chunked<136, 80, true>(most_late);
    return heads.check_chunked<136, 80>(most_late);
  }
  if (keys_of_chunk(size.tokens, size.head) == 144) return heads.check_chunked<144, 64>(most_late);
  if (size.bias) return heads.check_chunked<200, 64, true>(most_late);
  heads.check_chunked<200, 64>(most_late);
}

// All keys at once: of three images in shared memory, and of two; tiles that end early.
TEST(EmulatedKernels, AttentionOfWholeHeads) {
  Heads({197, 5, 1, 1}).check_whole<200, 64>(400);
  Heads({208, 3, 1, 1}).check_whole<208, 64>(1000);
  Heads({130, 4, 1, 2}).check_whole<144, 64>(30);
}

TEST(EmulatedKernels, AttentionOfNarrowHeads) {
  Heads({197, 5, 2, 1, false, 32}).check_whole<200, 32>(400);
  Heads({203, 4, 1, 1, false, 32}).check_whole<208, 32>(1000);
  Heads({81, 4, 1, 2, false, 32}).check_whole<200, 32>(30);
}

// Two and three chunks of keys, also where four smaller ones would leave fewer places empty.
TEST(EmulatedKernels, AttentionOfLongHeads) {
  expect_forward({577, 2, 1, 1}, 400);
  expect_forward({257, 3, 1, 2}, 1000);
  expect_forward({442, 1, 1, 1}, 30);
}

// Heads of 80 values, and of 72, behind which there are those of the next head.
TEST(EmulatedKernels, AttentionOfWideHeads) {
  expect_forward({257, 3, 2, 1, false, 80}, 400);
  expect_forward({256, 2, 2, 1, false, 72}, 1000);
  expect_forward({409, 1, 1, 1, false, 72}, 30);
  expect_forward({137, 2, 2, 2, true, 72}, 400);
}

// Heads whose chunks are brought anew for every three tiles, of which the last round has one or
// all; two images one after the other.
TEST(EmulatedKernels, AttentionOfLongerHeads) {
  expect_forward({601, 2, 1, 1}, 400);
  expect_forward({729, 1, 1, 1}, 1000);
  expect_forward({577, 1, 1, 1, false, 80}, 30);
}

// Scores that begin with a bias: one chunk with a place over, and several, in two rounds.
TEST(EmulatedKernels, AttentionWithABias) {
  expect_forward({197, 3, 2, 1, true}, 400);
  expect_forward({577, 1, 1, 1, true}, 30);
}

}  // namespace
}  // namespace vitrum::cuda
