// The CUDA library has this file too.
#include "vitrum/graph/op.h"

namespace vitrum {
namespace {

// The type's name as the compiler spells it in "[with T = vitrum::Linear; ...]", less the
// namespace.
template <class T>
constexpr std::string_view type_name() {
  constexpr std::string_view kBefore = "T = vitrum::";
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find(kBefore) + kBefore.size());
  return name.substr(0, name.find_first_of(";]"));
}

}  // namespace

std::string_view name_of(const Op& op) {
  return std::visit([]<class T>(const T&) { return type_name<T>(); }, op);
}

}  // namespace vitrum
