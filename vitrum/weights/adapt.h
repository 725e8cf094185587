// Parameters of a stored model, made to fit one of another image size or number of channels.
// Internal to weights/.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/models/model.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/positions.h"

namespace vitrum {

// How the framework a file comes from resamples positions. timm has one rule for all but FlexiViT,
// which was trained with bilinear interpolation.
PositionRule position_rule(const Dialect& dialect, std::string_view architecture);

// Between two models that are alike but for their image sizes, channels and windows; heads are not
// adapted. Each family has its own.
class Adapter {
 public:
  virtual ~Adapter() = default;
  virtual bool changes(const std::string& param) const = 0;
  virtual std::vector<float> operator()(const std::string& param,
                                        const std::vector<float>& values) const = 0;
  virtual std::vector<std::string> report() const = 0;  // for people
};
std::unique_ptr<const Adapter> adapter(const ModelConfig& stored, const ModelConfig& wanted,
                                       PositionRule rule);

// The model that a file must hold: the wanted one, but for what can be adapted.
ModelConfig expected_config(ModelConfig wanted, const ModelConfig& stored);

}  // namespace vitrum
