#include "vitrum/infer/describe.h"

namespace vitrum {

void describe(JsonWriter& json, Predictor& predictor) {
  const ModelConfig& c = predictor.model().config;
  json.field("architecture", predictor.model().architecture)
      .field("parameters", predictor.store().parameter_count())
      .field("classes", predictor.classes())
      .field("dimension", predictor.dimension())
      .field("channels", c.channels())
      .field("height", c.image_h())
      .field("width", c.image_w())
      .field("precision", name_of(predictor.precision()))
      .field("device", predictor.backend().name());
}

void describe_labels(JsonWriter& json, const Predictor& predictor) {
  json.key("labels").begin_array();
  for (const std::string& label : predictor.model().labels) json.value(label);
  json.end_array();
}

}  // namespace vitrum
