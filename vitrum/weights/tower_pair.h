// A model of images and texts in another dialect: what is written beside the image tower. Internal
// to weights/.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/stored_tensors.h"
#include "vitrum/weights/text_tower.h"

namespace vitrum {

class TowerPair {
 public:
  // Whether the dialect has names for text towers at all; timm's has not.
  static bool holds_texts(const Dialect& image_dialect);

  // `source` is a directory with both, `image` what its image tower is written as. Fails, saying
  // why, where the dialect has no such pair.
  TowerPair(const std::string& source, const Dialect& image_dialect, const ModelSpec& image);

  // What stands before the image tower's names.
  std::string image_prefix() const;
  // The text tower's tensors, and the numbers that both share. They live as long as this does.
  const std::vector<NamedTensor>& tensors() const { return written_.all(); }
  std::string not_finite() const { return file_.not_finite(params_, image_); }
  void check_intact() const { file_.check_intact(); }

  // ---- directories ----
  const char* weights_name() const;
  const char* config_name() const;
  // Fails where the directory holds what would be read in place of what is written.
  void require_room(const std::filesystem::path& dir) const;
  std::string config_text(const ModelSpec& image, const std::string& dtype) const;
  void copy_tokenizer(const std::filesystem::path& dir) const;
  // Whether what the config says is computed with the image tower's own eps and activation.
  bool says_eps(const ModelSpec& image) const;
  // Where texts are read a little differently, for people.
  std::vector<std::string> notes() const;

 private:
  void require_hf_pair(const ModelSpec& image) const;
  void add_number(const char* name);

  std::string source_;
  bool open_clip_;  // which is written, else transformers'
  ModelConfig image_;
  TextSpec spec_;
  Checkpoint file_;
  std::vector<ParamSpec> params_;
  Naming naming_;
  StoredTensors written_;
};

// ---- configs ----

// The marks of texts that transformers' text_config names; -1: not stated.
struct TextMarks {
  int64_t begin = -1, end = -1, pad = -1;
};
TextMarks text_marks(const std::string& model);

// `vision` is what the image tower's family writes for itself.
std::string hf_pair_config_text(const std::string& vision, const TextSpec& text,
                                const TextMarks& marks, const std::string& dtype);
// Fails, saying why, where OpenCLIP's configs cannot say it. `tokenizer`: files of one are beside.
std::string open_clip_config_text(const ModelSpec& image, const TextSpec& text,
                                  const TextMarks& marks, bool tokenizer);

}  // namespace vitrum
