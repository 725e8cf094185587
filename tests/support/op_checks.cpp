#include <fmt/core.h>

#include "tests/support/case_maker.h"

namespace vitrum::test {
namespace {

// Blanks the values of outputs that `c` does without, so that they are not compared.
std::vector<HostTensor> without_absent(std::vector<HostTensor> out, const OpCase& c) {
  out.resize(c.out.size());
  for (size_t i = 0; i < out.size(); ++i)
    if (!c.out[i].present) out[i].values.clear();
  return out;
}

std::string compare_subset(Backend& backend, const OpCase& fewer,
                           const std::vector<HostTensor>& all, const std::string& how) {
  const RunResult result = run_case(backend, fewer);
  if (!result.fault.empty()) return result.fault;
  const std::string wrong = bit_difference(result.out, without_absent(all, fewer));
  return wrong.empty() ? "" : fmt::format("{} with {}: {}", fewer.name, how, wrong);
}

}  // namespace

std::string optional_output_fault(Backend& backend, const OpCase& c) {
  const std::vector<HostTensor> all = run_case(backend, c).out;
  const uint32_t subsets = 1u << c.out.size();
  for (uint32_t absent = 1; absent < subsets; ++absent) {
    OpCase fewer = c;
    bool possible = true, any_left = false;
    for (size_t i = 0; i < c.out.size(); ++i) {
      if (absent >> i & 1) possible = possible && c.out[i].present && c.out[i].optional;
      if (absent >> i & 1) fewer.out[i] = Maker::none();
      any_left = any_left || fewer.out[i].present;
    }
    if (!possible || !any_left) continue;
    const std::string fault =
        compare_subset(backend, fewer, all, fmt::format("outputs {:b} absent", absent));
    if (!fault.empty()) return fault;
  }
  if (!c.aux_at_end) return {};
  OpCase first = c;
  first.out.resize(1);
  return compare_subset(backend, first, all, "one output");
}

namespace {

// A line of plain ops, each result the next one's operand.
class Chain {
 public:
  explicit Chain(Backend& backend) : backend_(backend) {}
  HostTensor operator()(Op op, std::vector<HostTensor> in, const HostTensor& out) {
    return run_case(backend_, {"plain", std::move(op), std::move(in), {out}}).out[0];
  }

 private:
  Backend& backend_;
};

std::string compare(Backend& backend, const OpCase& fused, std::vector<HostTensor> plain) {
  const std::string wrong = bit_difference(run_case(backend, fused).out, plain);
  return wrong.empty() ? "" : fused.name + " differs from its plain ops: " + wrong;
}

std::string linear_fault(Backend& backend, Maker& m, Act act, float drop) {
  Chain run(backend);
  const Shape shape{3, 17, 65};
  const HostTensor x = m.normal({3, 17, 33}, m.compute), w = m.normal({65, 33}, m.compute, 0.2);
  const HostTensor bias = m.normal({65}, m.compute), rng = m.rng_if(drop),
                   y = m.blank(shape, m.compute);
  const HostTensor pre = run(Linear{}, {x, w, bias, m.none()}, y);
  HostTensor plain = act == Act::kNone ? pre : run(Activation{act}, {pre}, y);
  if (drop > 0) plain = run(Dropout{drop, 7}, {plain, rng}, y);
  const OpCase fused = m.add(Linear{act, drop, 7}, "fused", {x, w, bias, rng}, {y});
  if (std::string fault = compare(backend, fused, {plain}); !fault.empty()) return fault;

  const HostTensor dy = m.normal(shape, m.compute), dw = m.normal({65, 33}, kF32);
  const HostTensor dx = m.blank(x.shape, m.compute), dbias = m.normal({65}, kF32);
  HostTensor d = drop > 0 ? run(Dropout{drop, 7}, {dy, rng}, y) : dy;
  if (act != Act::kNone) d = run(ActivationBwd{.act = act}, {d, pre}, y);
  const OpCase plain_bwd{"plain", LinearBwd{}, {d, x, w, m.none(), m.none()}, {dx, dw, dbias}};
  const HostTensor saved = act == Act::kNone ? m.none() : act == Act::kRelu ? plain : pre;
  const OpCase bwd = m.add(LinearBwd{.act = act, .drop = drop, .site = 7}, "fused",
                           {dy, x, w, saved, rng}, {dx, dw, dbias});
  return compare(backend, bwd, run_case(backend, plain_bwd).out);
}

std::string norm_fault(Backend& backend, Maker& m) {
  Chain run(backend);
  const Shape shape{3, 17, 65};
  const HostTensor a = m.normal(shape, m.compute), b = m.normal(shape, m.compute);
  const HostTensor w = m.normal({65}, kF32), bias = m.normal({65}, kF32);
  const HostTensor y = m.blank(shape, m.compute), row = m.blank({51}, kF32);
  const HostTensor sum = run(Add{}, {a, b}, y);
  const auto plain =
      run_case(backend, {"plain", LayerNorm{1e-6f}, {sum, w, bias}, {y, row, row}}).out;
  const OpCase fused = m.add(AddLayerNorm{1e-6f}, "fused", {a, b, w, bias}, {y, y, row, row});
  std::string fault = compare(backend, fused, {sum, plain[0], plain[1], plain[2]});
  if (!fault.empty()) return fault;

  const HostTensor dy = m.normal(shape, m.compute), dskip = m.normal(shape, m.compute);
  const HostTensor dx = run(LayerNormBwd{}, {dy, sum, w, plain[1], plain[2], m.none()}, y);
  const OpCase bwd = m.add(LayerNormBwd{}, "fused", {dy, sum, w, plain[1], plain[2], dskip}, {y});
  return compare(backend, bwd, {run(Add{}, {dx, dskip}, y)});
}

std::string patchify_fault(Backend& backend, Maker& m) {
  Chain run(backend);
  const Shape image{2, 3, 28, 14};
  const HostTensor pixels = m.below(image, 256, DType::kU8), y = m.blank({2, 8, 147}, m.compute);
  const HostTensor scale = m.normal({3}, kF32, 0.01), shift = m.normal({3}, kF32);
  const Patchify op{7, 7, PatchOrder::kChannelLast};
  const HostTensor flat = run(Normalize{}, {pixels, scale, shift}, m.blank(image, m.compute));
  const OpCase fused = m.add(op, "fused", {pixels, scale, shift}, {y});
  return compare(backend, fused, {run(op, {flat, m.none(), m.none()}, y)});
}

}  // namespace

std::string fusion_fault(Backend& backend, DType compute) {
  Maker m(compute, kOps);
  for (Act act : {Act::kNone, Act::kGelu, Act::kGeluTanh, Act::kRelu, Act::kQuickGelu, Act::kSilu,
                  Act::kSigmoid})
    for (float drop : {0.f, 0.3f})
      if (std::string fault = linear_fault(backend, m, act, drop); !fault.empty()) return fault;
  if (std::string fault = norm_fault(backend, m); !fault.empty()) return fault;
  return patchify_fault(backend, m);
}

}  // namespace vitrum::test
