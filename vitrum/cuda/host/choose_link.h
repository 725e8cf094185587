// Whether cards are connected by NCCL. A pure function, so that all processes come to the same
// answer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/core/error.h"

namespace vitrum::cuda {

// What each process says of itself. NCCL wants a card of its own for each.
struct LinkOffer {
  std::string card;     // a number that no other card in the world has
  std::string problem;  // why NCCL cannot be used here; "" where it can

  std::string text() const { return card + "\n" + problem; }
  static LinkOffer of(const std::string& text) {
    const size_t end = text.find('\n');
    return {text.substr(0, end), end == text.npos ? "" : text.substr(end + 1)};
  }
};

// Why these processes do without it: of which of them, and what; "" where they do not.
struct LinkChoice {
  size_t rank = 0;
  std::string problem;
};
inline LinkChoice choose_link(const std::vector<LinkOffer>& offers) {
  for (size_t r = 0; r < offers.size(); ++r) {
    if (!offers[r].problem.empty()) return {r, offers[r].problem};
    for (size_t other = 0; other < r; ++other)
      if (offers[other].card == offers[r].card)
        return {r, "shares a card with rank " + std::to_string(other)};
  }
  return {};
}

// What VITRUM_NCCL says: 0 or 1, or nothing.
inline std::string_view nccl_wish(const char* text) {
  const std::string_view value = text ? text : "";
  if (!value.empty() && value != "0" && value != "1")
    fail_usage("VITRUM_NCCL={}: expected 0 or 1", value);
  return value;
}

}  // namespace vitrum::cuda
