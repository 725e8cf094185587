#include "vitrum/cpu/simd/activate.h"
#include "vitrum/cpu/simd/arrays.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

void gate(Act act, Array x_array, Array y_array, int64_t width, int64_t first, int64_t last) {
  with_act(act, [&]<Act kAct>() {
    with_type(
        [&]<class T>() {
          const Stream<T> x(x_array), y(y_array);
          for (int64_t row = first; row < last; ++row)
            for_lanes(0, width, [&](int64_t i, auto n) {
              const Vf g = activate<kAct>(x.load(2 * row * width + i, n));
              y.store(row * width + i, g * x.load((2 * row + 1) * width + i, n), n);
            });
        },
        x_array, y_array);
  });
}

void gate_bwd(Act act, Array dy_array, Array x_array, Array dx_array, int64_t width, int64_t first,
              int64_t last) {
  with_act(act, [&]<Act kAct>() {
    with_type(
        [&]<class T>() {
          const Stream<T> dy(dy_array), x(x_array), dx(dx_array);
          for (int64_t row = first; row < last; ++row) {
            const int64_t at = 2 * row * width;
            for_lanes(0, width, [&](int64_t i, auto n) {
              const Vf d = dy.load(row * width + i, n), g = x.load(at + i, n),
                       v = x.load(at + width + i, n);
              dx.store(at + i, d * v * activate_grad<kAct>(g), n);
              dx.store(at + width + i, d * activate<kAct>(g), n);
            });
          }
        },
        dy_array, x_array, dx_array);
  });
}

}  // namespace

constinit const GateKernels kGate = {.forward = gate, .backward = gate_bwd};

}  // namespace vitrum::cpu::VITRUM_ISA
