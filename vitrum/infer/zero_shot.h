// Classes by their names alone: how well each name, as a text, fits an image.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/infer/predictor.h"
#include "vitrum/weights/text_tower.h"

namespace vitrum {

// The vector of an image in the space that it shares with texts; of any other model, what its last
// layer gives.
std::span<const float> joint_vector(const Predictor& predictor, std::span<const float> logits,
                                    std::span<const float> features);

class ZeroShot {
 public:
  // `model` is what the predictor was made from. A template has {} where the label goes; the vector
  // of a class is the mean of those of all templates, each of length 1.
  ZeroShot(const std::string& model, Predictor& predictor, std::vector<std::string> labels,
           const std::vector<std::string>& templates);

  const std::vector<std::string>& labels() const { return labels_; }
  // scale * cosine + bias of every label; `image` is a joint_vector().
  std::vector<float> logits(std::span<const float> image) const;
  // The `count` best labels. Of a model that was trained to tell texts apart (CLIP) probabilities
  // add up to 1; one that was trained to tell whether a text fits (SigLIP) says so of each.
  std::vector<Prediction> best(std::span<const float> image, size_t count) const;

 private:
  TextSpec spec_;
  std::vector<std::string> labels_;
  std::vector<float> classes_;  // (labels, space), of length 1 each
};

// "a cat,a dog", or @FILE with a label a line; fails where there is none or one is there twice.
std::vector<std::string> read_labels(const std::string& option);

}  // namespace vitrum
