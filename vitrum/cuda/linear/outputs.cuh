// What becomes of the results of linear/tile.cuh on their way out of the registers, and the
// epilogue that adds a bias before. A form works on two eights of a row whose columns lie 32 apart,
// the first at a multiple of 64 and what the thread has of 32; and has
//   Row: what it wants to know of a row; row(row, column), before the main loop
//   (eights, row)
//
// The primitives it is written in (device.cuh, activation.cuh, tma.cuh, wgmma.cuh) are included
// before it: tests without a card have a second set.
#pragma once
#include "vitrum/cuda/attention/rotate.cuh"
#include "vitrum/cuda/linear/tile.cuh"
#include "vitrum/cuda/primitives/gate.cuh"

namespace vitrum::cuda::tile {

// Of a form: where an eight of part `part` stands in a row of the product, and in one of the
// result.
template <class Form>
__device__ __forceinline__ int column_of(int column, int part, int columns) {
  if constexpr (!Form::kGates) return column + 32 * part;
  constexpr int kHalf = kParts / 2;
  const int gate = column / kColumns * kShare + column % kColumns + 32 * (part % kHalf);
  return part < kHalf ? gate : columns / 2 + gate;
}
template <class Form>
constexpr int first_part(int pair) {
  return Form::kApart == 1 ? 2 * pair : pair;
}

template <Act kAct>
struct Activated {
  static constexpr int kApart = 1;
  static constexpr bool kGates = false;
  struct Row {};

  __device__ __forceinline__ Row row(int, int) const { return {}; }
  __device__ __forceinline__ void operator()(Eight (&v)[2], const Row&) const {
#pragma unroll
    for (Eight& eight : v)
#pragma unroll
      for (int i = 0; i < 8; ++i) eight.v[i] = activate<kAct, bf16>(eight.v[i]);
  }
};

// Rotary positions of heads of 64: both of a pair are in one thread, and its pairs have the same
// angles in every head.
struct Rotated {
  static constexpr int kApart = 1;
  static constexpr bool kGates = false;
  struct Row {
    Eight cosines, sines;
  };
  Rotation rotation;

  __device__ __forceinline__ Row row(int row, int column) const {
    Row of;
    const float* const angles = rotation.angles(row, column);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int own = column % 32, pair = rotation.halves ? own + i : own / 2 + i % 4 + i / 4 * 16;
      of.cosines.v[i] = angles ? angles[pair] : 1.0f;
      of.sines.v[i] = angles ? __fmul_rn(rotation.sign, angles[32 + pair]) : 0.0f;
    }
    return of;
  }
  __device__ __forceinline__ void operator()(Eight (&v)[2], const Row& of) const {
    const auto turn = [&](float& a, float& b, int i) {
      const float first = a, second = b, cosine = of.cosines.v[i], sine = of.sines.v[i];
      a = turned(first, second, cosine, sine, true), b = turned(second, first, cosine, sine, false);
    };
    if (rotation.halves) {
#pragma unroll
      for (int i = 0; i < 8; ++i) turn(v[0].v[i], v[1].v[i], i);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) turn(v[i / 4].v[i % 4 * 2], v[i / 4].v[i % 4 * 2 + 1], i);
    }
  }
};

// Gated activations, as primitives/gate.cuh has them: act(first) * second.
template <Act kAct>
struct Gated {
  static constexpr int kApart = kParts / 2;
  static constexpr bool kGates = true;
  struct Row {};

  __device__ __forceinline__ Row row(int, int) const { return {}; }
  __device__ __forceinline__ void operator()(Eight (&v)[2], const Row&) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[0].v[i] = gated<kAct, bf16>(v[0].v[i], v[1].v[i]);
  }
};

// Two eights of a row, as their form wants them in memory.
template <class Form>
__device__ __forceinline__ void store_form(const Form& form, Eight (&v)[2],
                                           const typename Form::Row& row, bf16* y, int pair,
                                           int column, int columns, bool inside) {
  constexpr int kResults = Form::kGates ? 1 : 2;
  form(v, row);
#pragma unroll
  for (int e = 0; e < kResults; ++e)
    store_if(inside, y + column_of<Form>(column, first_part<Form>(pair) + e, columns),
             pack<bf16>(v[e]));
}

template <class Form>
struct BiasEpilogue {
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  struct Table {};
  struct Prefetched {
    Raw8<bf16> bias[kParts];
    typename Form::Row rows[2];
  };

  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: what the form is given; may be null
  int rows, columns;
  Form form = {};

  __device__ void fill(Table&, int, int) const {}
  __device__ __forceinline__ void prefetch(Prefetched& prefetched, int row, int column) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      prefetched.bias[part] =
          bias ? load_raw(bias + column_of<Form>(column, part, columns)) : Raw8<bf16>{};
#pragma unroll
    for (int half = 0; half < 2; ++half) prefetched.rows[half] = form.row(row + 8 * half, column);
  }
  __device__ __forceinline__ void finish(const Accumulators& d, const Prefetched& prefetched,
                                         const Table&, int row, int column) const {
    const int64_t below = int64_t{8} * columns, first = int64_t{row} * columns;
    constexpr int kDivide = Form::kGates ? 2 : 1;
    bf16 *const to_y[2] = {y + first / kDivide, y + (first + below) / kDivide}, *const to_pre[2] = {
                                                                                    pre + first,
                                                                                    pre + first +
                                                                                        below};
    const bool inside[2] = {row < rows, row + 8 < rows};
#pragma unroll
    for (int pair = 0; pair < kParts / 2; ++pair)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int part = first_part<Form>(pair) + e * Form::kApart;
          const Eight b = unpack(prefetched.bias[part]);
#pragma unroll
          for (int i = 0; i < 8; ++i) v[e].v[i] = d[permuted_accumulator(part, half, i)] + b.v[i];
          const Raw8<bf16> raw = pack<bf16>(v[e]);
          store_if(inside[half] && pre, to_pre[half] + column_of<Form>(column, part, columns), raw);
          v[e] = unpack(raw);
        }
        store_form(form, v, prefetched.rows[half], to_y[half], pair, column, columns, inside[half]);
      }
  }
};

}  // namespace vitrum::cuda::tile
