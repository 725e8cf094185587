// Parameters of a stored model, made to fit one of another image size or number of channels.
// Internal to weights/.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "vitrum/models/model.h"
#include "vitrum/weights/positions.h"

namespace vitrum {

// The model that a file must hold: the wanted one, but for what can be adapted.
ModelConfig expected_config(ModelConfig wanted, const ModelConfig& stored);

// Both models are alike but for their image sizes, channels and windows; heads are not adapted.
class Adaptation {
 public:
  Adaptation(ModelConfig stored, ModelConfig wanted, PositionRule rule)
      : stored_(std::move(stored)), wanted_(std::move(wanted)), rule_(rule) {}

  bool changes(const std::string& param) const;
  std::vector<float> operator()(const std::string& param, const std::vector<float>& values) const;
  std::vector<std::string> report() const;  // for people

 private:
  template <class F>
  auto with_adapter(const F& use) const;

  ModelConfig stored_, wanted_;
  PositionRule rule_;
};

}  // namespace vitrum
