// Which algorithm each matrix product got, as text that other processes of a run, and the run's
// next part, go by: a line for what it holds for, then one for each product.
#pragma once
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "vitrum/core/error.h"

namespace vitrum::cuda {

inline constexpr size_t kChoiceWords = 8;
using Choice = std::array<uint64_t, kChoiceWords>;  // cublasLtMatmulAlgo_t

struct Choices {
  std::string holds_for;  // the card and the library's version
  std::map<std::string, Choice> of;

  std::string text() const {
    std::string all = kFormat + holds_for + "\n";
    for (const auto& [product, choice] : of) all += line(product, choice);
    return all;
  }
  static std::string line(const std::string& product, const Choice& choice) {
    std::string text = product + " ";
    for (const uint64_t word : choice) text += fmt::format("{:016x}", word);
    return text + "\n";
  }
  // Text of another kind, and lines that are cut short, say nothing.
  static Choices from(const std::string& text) {
    Choices choices;
    std::istringstream in(text);
    std::string first;
    if (!std::getline(in, first) || !first.starts_with(kFormat)) return choices;
    choices.holds_for = first.substr(kFormat.size());
    choices.read_lines(in);
    return choices;
  }
  void read_lines(std::istream& in) {
    for (std::string product, hex; in >> product >> hex;) {
      Choice choice{};
      if (hex.size() != 16 * kChoiceWords) continue;
      for (size_t i = 0; i < kChoiceWords; ++i)
        choice[i] = std::strtoull(hex.substr(16 * i, 16).c_str(), nullptr, 16);
      of.try_emplace(product, choice);
    }
  }

 private:
  inline static const std::string kFormat = "vitrum-choices-1 ";
};

}  // namespace vitrum::cuda
