// Rotary positions.
#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

void run(const Rotate& op, const Operands& io) {
  const auto& [heads, prefix, halves, inverse] = op;
  const Shape& shape = io.in[Rotate::kQkv].shape;
  const int64_t tokens = shape[1], width = shape[2] / 3, head = width / heads, pairs = head / 2;
  const Values table = read(io.in[Rotate::kTable]);
  Values v = read(io.in[Rotate::kQkv]);
  for (int64_t row = 0; row < shape[0] * tokens; ++row) {
    const int64_t token = row % tokens - prefix;
    if (token < 0) continue;
    for (int64_t at = row * 3 * width; at < row * 3 * width + 2 * width; at += head)  // q, then k
      for (int64_t i = 0; i < pairs; ++i) {
        double &a = v[at + (halves ? i : 2 * i)], &b = v[at + (halves ? i + pairs : 2 * i + 1)];
        const double cos = table[token * head + i],
                     sin = (inverse ? -1 : 1) * table[token * head + pairs + i];
        const double turned = a * cos - b * sin;
        b = b * cos + a * sin, a = turned;
      }
  }
  write(io.out[Rotate::kY], v);
}

}  // namespace vitrum::reference
