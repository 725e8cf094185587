#include <cmath>
#include <numbers>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

static constexpr double kTanhScale =
    std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
static constexpr double kTanhCubic = 0.044715;

static double tanh_argument(double x) { return kTanhScale * (x + kTanhCubic * x * x * x); }

static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double activate(Act act, double x) {
  switch (act) {
    case Act::kNone: return x;
    case Act::kGelu: return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Act::kGeluTanh: return 0.5 * x * (1 + std::tanh(tanh_argument(x)));
    case Act::kRelu: return x <= 0 ? 0 : x;  // NaN stays NaN
    case Act::kQuickGelu:
    case Act::kSilu: return x * sigmoid(sigmoid_beta(act) * x);
    case Act::kSigmoid: return sigmoid(x);
  }
  return x;
}

double activation_slope(Act act, double x) {
  switch (act) {
    case Act::kNone: return 1;
    case Act::kGelu: {
      const double density =
          std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
    }
    case Act::kGeluTanh: {
      const double t = std::tanh(tanh_argument(x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kTanhScale * (1 + 3 * kTanhCubic * x * x);
    }
    case Act::kRelu: return x <= 0 ? 0 : 1;
    case Act::kQuickGelu:
    case Act::kSilu: {
      const double beta = sigmoid_beta(act), s = sigmoid(beta * x);
      return s + beta * x * s * sigmoid(-beta * x);
    }
    case Act::kSigmoid: return sigmoid(x) * sigmoid(-x);
  }
  return 1;
}

void run(const Activation& op, const Operands& io) {
  const auto& [act] = op;
  Values v = read(io.in[Activation::kX]);
  for (double& x : v) x = activate(act, x);
  write(io.out[Activation::kY], v);
}

void run(const ActivationBwd& op, const Operands& io) {
  const auto& [act] = op;
  Values d = read(io.in[ActivationBwd::kDy]);
  const Values x = read(io.in[ActivationBwd::kX]);
  for (size_t i = 0; i < d.size(); ++i) d[i] *= activation_slope(act, x[i]);
  write(io.out[ActivationBwd::kDx], d);
}

void run(const NoAttributes<Add>&, const Operands& io) {
  Values v = read(io.in[Add::kA]);
  const Values b = read(io.in[Add::kB]);
  for (size_t i = 0; i < v.size(); ++i) v[i] += b[i];
  write(io.out[Add::kY], v);
}

void run(const NoAttributes<ChannelScale>&, const Operands& io) {
  Values v = read(io.in[ChannelScale::kX]);
  const Values gamma = read(io.in[ChannelScale::kGamma]);
  for (size_t i = 0; i < v.size(); ++i) v[i] *= gamma[i % gamma.size()];
  write(io.out[ChannelScale::kY], v);
}

void run(const NoAttributes<ChannelScaleBwd>&, const Operands& io) {
  const Values dy = read(io.in[ChannelScaleBwd::kDy]), x = read(io.in[ChannelScaleBwd::kX]),
               gamma = read(io.in[ChannelScaleBwd::kGamma]);
  Values dx(dy.size()), product(dy.size());
  for (size_t i = 0; i < dy.size(); ++i)
    dx[i] = dy[i] * gamma[i % gamma.size()], product[i] = dy[i] * x[i];
  write(io.out[ChannelScaleBwd::kDx], dx);
  add_to(at(io.out, ChannelScaleBwd::kDgamma),
         sum_rows(product, static_cast<int64_t>(gamma.size())));
}

void run(const Dropout& op, const Operands& io) {
  const auto& [drop, site] = op;
  const DropMask mask(io.in[Dropout::kRng], drop, site);
  Values v = read(io.in[Dropout::kX]);
  for (size_t i = 0; i < v.size(); ++i) v[i] *= mask.at(static_cast<int64_t>(i));
  write(io.out[Dropout::kY], v);
}

void run(const DropPath& op, const Operands& io) {
  const auto& [drop, site] = op;
  const DropMask mask(io.in[DropPath::kRng], drop, site);
  Values v = read(io.in[DropPath::kX]);
  const size_t sample = v.size() / static_cast<size_t>(io.in[DropPath::kX].shape[0]);
  for (size_t i = 0; i < v.size(); ++i)
    v[i] *= mask.at(/*per_row=*/1, static_cast<int64_t>(i / sample), 0);
  write(io.out[DropPath::kY], v);
}

}  // namespace vitrum::reference
