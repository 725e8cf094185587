#include "vitrum/graph/init.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "vitrum/core/philox.h"

namespace vitrum {
namespace {
uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3u;
  return h;
}
}  // namespace

Init Init::fan_in(int64_t fan_in) {
  const float bound = 1.f / std::sqrt(static_cast<float>(std::max<int64_t>(1, fan_in)));
  return uniform(-bound, bound);
}

Init Init::xavier(int64_t fan_in, int64_t fan_out) {
  const float bound = std::sqrt(6.f / static_cast<float>(std::max<int64_t>(1, fan_in + fan_out)));
  return uniform(-bound, bound);
}

void Init::fill(std::span<float> out, const std::string& name, uint64_t seed) const {
  if (kind == Kind::kGiven) {
    assert(values.size() == out.size());
    std::copy(values.begin(), values.end(), out.begin());
    return;
  }
  PhiloxStream draw(seed, kInitStream, fnv1a(key.empty() ? name : key));
  for (float& x : out) {
    switch (kind) {
      case Kind::kConstant: x = a; break;
      case Kind::kUniform: x = static_cast<float>(draw.uniform(a, b)); break;
      case Kind::kGiven: break;
      case Kind::kNormal: x = static_cast<float>(a + b * draw.normal()); break;
    }
  }
}

}  // namespace vitrum
