// Attention pooling, forward and backward, run without a card: see support/emulated_card.h.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/emulated_tensors.h"
#include "tests/support/op_cases.h"
#include "vitrum/reference/reference.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/attention/attend_pool.cuh"

namespace vitrum::cuda {
namespace {

using namespace attend_pool;

// Elements as a reference case has them, in the precision that the kernel computes with.
struct Floats {
  float* data = nullptr;
  float load(int64_t i) const { return data[i]; }
  void store(int64_t i, float x) const { data[i] = x; }
};

std::vector<float> floats(const test::HostTensor& t) { return {t.values.begin(), t.values.end()}; }
void expect_near(const std::vector<float>& got, const test::HostTensor& want,
                 const std::string& name) {
  ASSERT_EQ(got.size(), want.values.size()) << name;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want.values[i], 1e-5 * (1 + std::abs(want.values[i]))) << name << " " << i;
}

void launch(const Args<Floats>& args, int64_t images, bool backwards) {
  card.most_late = 1, card.cluster = 1;
  card.blocks = static_cast<int>(images) * args.heads;
  card.body = [&] {
    auto* shared = reinterpret_cast<float*>(card.shared());
    backwards ? backward(args, shared) : forward(args, shared);
  };
  for (card.block = 0; card.block < card.blocks; ++card.block) card.run(kThreads);
}

Args<Floats> args_of(std::vector<float>& kv, std::vector<float>& q, const Shape& shape,
                     int64_t heads) {
  return {.kv = {kv.data()},
          .q = {q.data()},
          .out = {},
          .dy = {},
          .dq = nullptr,
          .writes_dkv = true,
          .tokens = static_cast<int>(shape[1]),
          .heads = static_cast<int>(heads),
          .size = static_cast<int>(shape[2] / 2 / heads)};
}

TEST(EmulatedKernels, AttendPool) {
  const auto reference = make_reference_backend();
  for (const test::OpCase& c : test::op_cases(Op(AttendPool{}).index(), DType::kF32)) {
    const auto* op = std::get_if<AttendPool>(&c.op);
    const test::RunResult done = test::run_case(*reference, c);
    const Shape& shape = c.in[AttendPool::kKv].shape;
    std::vector<float> kv = floats(c.in[AttendPool::kKv]), q = floats(c.in[AttendPool::kQ]);
    std::vector<float> y(done.out[0].values.size(), NAN);
    Args<Floats> args = args_of(kv, q, shape, op->heads);
    args.out = {y.data()};
    launch(args, shape[0], false);
    expect_near(y, done.out[0], c.name);
  }
}

TEST(EmulatedKernels, AttendPoolBackward) {
  const auto reference = make_reference_backend();
  for (const test::OpCase& c : test::op_cases(Op(AttendPoolBwd{}).index(), DType::kF32)) {
    const auto* op = std::get_if<AttendPoolBwd>(&c.op);
    const test::RunResult done = test::run_case(*reference, c);
    const Shape& shape = c.in[AttendPoolBwd::kKv].shape;
    std::vector<float> kv = floats(c.in[AttendPoolBwd::kKv]), q = floats(c.in[AttendPoolBwd::kQ]),
                       dy = floats(c.in[AttendPoolBwd::kDy]);
    std::vector<float> dkv(kv.size(), NAN), parts(dy.size(), NAN), dq(q.size(), 0.f);
    Args<Floats> args = args_of(kv, q, shape, op->heads);
    args.dy = {dy.data()}, args.out = {dkv.data()}, args.dq = parts.data();
    launch(args, shape[0], true);
    for (size_t i = 0; i < parts.size(); ++i) dq[i % q.size()] += parts[i];
    expect_near(dkv, done.out[AttendPoolBwd::kDkv], c.name);
    expect_near(dq, done.out[AttendPoolBwd::kDq], c.name);
  }
}

}  // namespace
}  // namespace vitrum::cuda
