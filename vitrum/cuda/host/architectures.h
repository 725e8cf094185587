// For which cards the library was built.
#pragma once
#include <charconv>
#include <string_view>

namespace vitrum::cuda {

// One of CMAKE_CUDA_ARCHITECTURES: "89-real" runs on later cards of its generation too,
// "120-virtual" (PTX) on every later card, "90" on both kinds, "90a" on 9.0 alone. What is no
// number ("native", "all") is taken to be meant for the card at hand.
inline bool architecture_runs_on(std::string_view one, int capability) {
  int built = 0;
  const auto [end, error] = std::from_chars(one.data(), one.data() + one.size(), built);
  if (error != std::errc()) return true;
  const std::string_view kind(end, static_cast<size_t>(one.data() + one.size() - end));
  if (kind.starts_with('a')) return capability == built;
  const bool same_generation = capability / 10 == built / 10, only_real = kind.ends_with("-real");
  return capability >= built && (same_generation || !only_real);
}

// `list` with commas; `capability` 89 is 8.9.
inline bool runs_on(std::string_view list, int capability) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (architecture_runs_on(list.substr(0, comma), capability)) return true;
    list = comma == list.npos ? "" : list.substr(comma + 1);
  }
  return false;
}

}  // namespace vitrum::cuda
