// Attention of one query, and rows of a table by number.
#include <cmath>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/attention.h"

namespace vitrum::cpu {
namespace {

// A thousandth of a model's work, so loops that any compiler knows: eight sums side by side, in an
// order of their own for every instruction set.
float dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  for (int k = 0; i < n; ++i, ++k) sums[k] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void add_scaled(float* to, float factor, const float* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

struct Dims {
  int64_t batch, tokens, heads, head, padded;

  Dims(const TensorView& kv, int64_t heads_)
      : batch(kv.shape[0]),
        tokens(kv.shape[1]),
        heads(heads_),
        head(kv.shape[2] / 2 / heads_),
        padded((tokens + 15) / 16 * 16) {}
  int64_t width() const { return heads * head; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head)); }
  // The element of kv where the keys (part 0) or values (1) of a head of an image begin.
  int64_t at(int64_t image, int64_t part, int64_t h) const {
    return (image * tokens * 2 + part) * width() + h * head;
  }
};

// One head's operands as f32 in a thread's scratch.
struct Room {
  float *k, *v, *dk, *dv;  // (tokens, head)
  float *p, *g, *factors;  // (padded), (padded), (padded + 32)
  float *q, *y, *dq;       // (head)
  static int64_t floats(const Dims& d) {
    return 4 * round(d.tokens * d.head) + 3 * d.padded + 32 + 3 * round(d.head);
  }
  static int64_t round(int64_t n) { return (n + 15) / 16 * 16; }

  Room(const Dims& d, std::byte* scratch) {
    auto* next = reinterpret_cast<float*>(scratch);
    const auto take = [&](int64_t n) { return std::exchange(next, next + round(n)); };
    k = take(d.tokens * d.head), v = take(d.tokens * d.head);
    dk = take(d.tokens * d.head), dv = take(d.tokens * d.head);
    p = take(d.padded), g = take(d.padded), factors = take(d.padded + 32);
    q = take(d.head), y = take(d.head), dq = take(d.head);
  }
};

// Reads a head and how much of each of its tokens the query takes.
void attend(CpuBackend& cpu, const Dims& d, Array kv, Array q, int64_t image, int64_t h,
            const Room& r) {
  const AttentionKernels& simd = *cpu.simd().attention;
  const int64_t stride = 2 * d.width();
  simd.gather(kv, d.at(image, 0, h), stride, d.tokens, d.head, r.k);
  simd.gather(kv, d.at(image, 1, h), stride, d.tokens, d.head, r.v);
  simd.gather(q, h * d.head, d.head, 1, d.head, r.q);
  for (int64_t t = 0; t < d.tokens; ++t) r.p[t] = dot(r.q, r.k + t * d.head, d.head);
  simd.softmax(r.p, 1, d.tokens, d.padded, d.scale(), 0, nullptr, nullptr, r.factors);
}

void backward(const Dims& d, const Room& r) {  // r.y holds dy
  for (int64_t t = 0; t < d.tokens; ++t) {
    r.g[t] = dot(r.y, r.v + t * d.head, d.head);
    for (int64_t i = 0; i < d.head; ++i) r.dv[t * d.head + i] = r.p[t] * r.y[i];
  }
  const float mean = dot(r.p, r.g, d.tokens);
  for (int64_t t = 0; t < d.tokens; ++t) {
    const float ds = d.scale() * r.p[t] * (r.g[t] - mean);
    for (int64_t i = 0; i < d.head; ++i) r.dk[t * d.head + i] = ds * r.q[i];
    add_scaled(r.dq, ds, r.k + t * d.head, d.head);
  }
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const AttendPool& op, const Operands& io) {
  const auto& [heads] = op;
  const Dims d(io.in[AttendPool::kKv], heads);
  cpu.reserve_per_thread(static_cast<size_t>(Room::floats(d)) * sizeof(float));
  return make_kernel([&cpu, d, kv = floats(io.in[AttendPool::kKv]),
                      q = floats(io.in[AttendPool::kQ]), y = floats(io.out[AttendPool::kY])] {
    cpu.pool().run(d.batch * d.heads, [&](int64_t task, int thread) {
      const int64_t image = task / d.heads, h = task % d.heads;
      const Room r(d, cpu.thread_scratch(thread));
      attend(cpu, d, kv, q, image, h, r);
      std::fill_n(r.y, d.head, 0.f);
      for (int64_t t = 0; t < d.tokens; ++t) add_scaled(r.y, r.p[t], r.v + t * d.head, d.head);
      cpu.simd().attention->scatter(r.y, y, task * d.head, d.head, 1, d.head, nullptr);
    });
  });
}

// A task has one head of all images, since dq is their sum.
KernelPtr lower(CpuBackend& cpu, const AttendPoolBwd& op, const Operands& io) {
  const auto& [heads] = op;
  const Dims d(io.in[AttendPoolBwd::kKv], heads);
  cpu.reserve_per_thread(static_cast<size_t>(Room::floats(d)) * sizeof(float));
  const TensorView dkv = operand(io.out, AttendPoolBwd::kDkv),
                   dq = operand(io.out, AttendPoolBwd::kDq);
  return make_kernel([&cpu, d, dkv, dq, dy = floats(io.in[AttendPoolBwd::kDy]),
                      kv = floats(io.in[AttendPoolBwd::kKv]),
                      q = floats(io.in[AttendPoolBwd::kQ])] {
    const AttentionKernels& simd = *cpu.simd().attention;
    cpu.pool().run(d.heads, [&](int64_t h, int thread) {
      const Room r(d, cpu.thread_scratch(thread));
      std::fill_n(r.dq, d.head, 0.f);
      for (int64_t image = 0; image < d.batch; ++image) {
        attend(cpu, d, kv, q, image, h, r);
        simd.gather(dy, (image * d.heads + h) * d.head, d.head, 1, d.head, r.y);
        backward(d, r);
        if (!dkv.data) continue;
        const int64_t stride = 2 * d.width();
        simd.scatter(r.dk, floats(dkv), d.at(image, 0, h), stride, d.tokens, d.head, nullptr);
        simd.scatter(r.dv, floats(dkv), d.at(image, 1, h), stride, d.tokens, d.head, nullptr);
      }
      if (dq.data) simd.scatter(r.dq, floats(dq), h * d.head, d.head, 1, d.head, nullptr);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Lookup>&, const Operands& io) {
  const TensorView table = io.in[Lookup::kTable], ids = io.in[Lookup::kIds];
  const int64_t width = table.shape[-1];
  return make_kernel([&cpu, width, ids, chunks = chunk_rows(ids.shape.numel(), width),
                      from = floats(table), y = floats(io.out[Lookup::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      for (int64_t i = first; i < last; ++i)
        cpu.simd().embed->add_row(from, ids.i32()[i] * width, nullptr, y, i * width, width);
    });
  });
}

}  // namespace vitrum::cpu
