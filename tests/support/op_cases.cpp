#include "tests/support/op_cases.h"

#include "tests/support/case_maker.h"

namespace vitrum::test {

// An op's data hangs on its name, so that adding another op changes no case.
static size_t seed_of(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

template <size_t... I>
static std::vector<OpCase> cases_of(size_t index, DType compute, std::index_sequence<I...>) {
  using Make = void (*)(Maker&);
  static constexpr Make kMakers[] = {
      [](Maker& m) { make(m, std::variant_alternative_t<I, Op>{}); }...};
  Maker maker(compute, seed_of(op_name(index)));
  kMakers[index](maker);
  return std::move(maker.cases);
}

template <size_t... I>
static std::string name_of(size_t index, std::index_sequence<I...>) {
  const Op ops[] = {std::variant_alternative_t<I, Op>{}...};
  return std::string(vitrum::name_of(ops[index]));
}

std::vector<OpCase> op_cases(size_t index, DType compute) {
  return cases_of(index, compute, std::make_index_sequence<kOps>());
}

std::string op_name(size_t index) { return name_of(index, std::make_index_sequence<kOps>()); }

}  // namespace vitrum::test
