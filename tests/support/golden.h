// A file of tensors that a peer computed, with a description as JSON.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "vitrum/weights/safetensors.h"

namespace vitrum::test {

class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(folder() + "/" + name + ".safetensors"),
        meta(nlohmann::json::parse(file_.metadata().at("golden"))) {}

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const std::span<const std::byte> bytes = file_.bytes(file_.at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<float> f32(const std::string& name) const { return read<float>(name); }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

 private:
  static std::string folder() {  // tools/ that compare live write their own
    const char* live = std::getenv("VITRUM_GOLDEN");
    return live ? live : std::string(VITRUM_SOURCE_DIR) + "/tests/golden";
  }
  SafetensorsFile file_;

 public:
  const nlohmann::json meta;
};

inline double norm_of(const std::vector<float>& x) {
  double sum = 0;
  for (float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

// |a - b| relative to |b|, with a floor: some gradients are zero in exact arithmetic.
inline void expect_close(const std::vector<float>& ours, const std::vector<float>& theirs,
                         double floor, const std::string& what, double tolerance = 1e-4) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  std::vector<float> difference(ours.size());
  for (size_t i = 0; i < ours.size(); ++i) difference[i] = ours[i] - theirs[i];
  EXPECT_LE(norm_of(difference), tolerance * std::max(norm_of(theirs), floor)) << what;
}

}  // namespace vitrum::test
