// A teacher's logits for all training images, and for the same left-right where they are flipped,
// computed once: a safetensors file with what they belong to in its metadata.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {

// What logits depend on, as digests: every label in order with a sample of the pixels as they are
// preprocessed, and every weight of the teacher with its mean and std.
struct TeacherLogitsKey {
  int64_t images = 0, classes = 0;
  bool flips = false;
  std::string data, teacher;
};
// Of every weight of a teacher, and its mean and std.
std::string teacher_digest(const std::string& teacher, const ModelSpec& spec);
TeacherLogitsKey teacher_logits_key(const std::string& teacher_digest, int64_t classes,
                                    const Dataset& data, const Preprocess& preprocess);

// `logits` is (images, classes), or with flips (images, 2, classes), left-right last. Atomic.
void write_teacher_logits(const std::string& path, const TeacherLogitsKey& key,
                          std::span<const float> logits);

class TeacherLogits {
 public:
  // Fails, naming what differs, where the file is another teacher's or of other data.
  TeacherLogits(const std::string& path, const TeacherLogitsKey& key);

  // Of the images with these indices, (indices, classes), those that are not 0 in `mirrored`
  // left-right; zeros for an index of -1.
  void rows(std::span<const int64_t> indices, std::span<const uint8_t> mirrored,
            std::vector<float>& to) const;

 private:
  SafetensorsFile file_;
  std::span<const std::byte> logits_;
  size_t classes_, answers_ = 1;  // of an image
};

}  // namespace vitrum
