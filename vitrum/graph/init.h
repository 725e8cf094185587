#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vitrum {

// How a parameter starts. Draws are keyed by the parameter's name (or `key`), never by the order of
// creation; two parameters with the same key start as copies of each other.
struct Init {
  enum class Kind : uint8_t { kConstant, kUniform, kNormal, kGiven };
  Kind kind = Kind::kConstant;
  float a = 0, b = 0;  // constant a; uniform in [a, b); normal with mean a and deviation b
  std::string key = {};
  std::vector<float> values = {};  // kGiven: those themselves

  static Init zeros() { return {}; }
  static Init constant(float c) { return {Kind::kConstant, c, 0}; }
  static Init uniform(float lo, float hi) { return {Kind::kUniform, lo, hi}; }
  static Init normal(float deviation) { return {Kind::kNormal, 0, deviation}; }
  static Init given(std::vector<float> values) {
    return {Kind::kGiven, 0, 0, {}, std::move(values)};
  }
  // PyTorch's Linear and Conv2d default: uniform +-1/sqrt(fan_in), for weight and bias alike.
  static Init fan_in(int64_t fan_in);
  // Uniform +-sqrt(6 / (fan_in + fan_out)).
  static Init xavier(int64_t fan_in, int64_t fan_out);

  void fill(std::span<float> out, const std::string& name, uint64_t seed) const;
};

}  // namespace vitrum
