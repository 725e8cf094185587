#pragma once
#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace vitrum {

// Dimensions of a contiguous tensor, stored inline. Negative indices count from the end.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    assert(rank_ <= kMaxRank);
    std::copy(dims.begin(), dims.end(), dims_.begin());
  }

  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int i) const {
    assert(i >= -rank_ && i < rank_);
    return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)];
  }
  constexpr int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  // All dimensions but the last, multiplied: a tensor seen as (rows, last).
  constexpr int64_t rows() const {
    return rank_ == 0 || (*this)[-1] == 0 ? 0 : numel() / (*this)[-1];
  }

  constexpr Shape with_last(int64_t n) const {
    Shape s = *this;
    s.dims_[static_cast<size_t>(rank_ - 1)] = n;
    return s;
  }
  void append(int64_t n) {
    assert(rank_ < kMaxRank);
    dims_[static_cast<size_t>(rank_++)] = n;
  }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }

  constexpr bool operator==(const Shape&) const = default;

  std::string str() const {  // "(128, 197, 768)"
    std::string s = "(";
    for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string((*this)[i]);
    return s + ")";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace vitrum
