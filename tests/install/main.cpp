// A program outside the project that uses the installed library: all of its public headers
// (run.sh compares), and nothing else.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "vitrum/core/error.h"
#include "vitrum/data/dataset.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_dir.h"

static void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

int main() {
  const vitrum::Preset& preset = vitrum::find_preset("vit_tiny_patch16_224");
  require(preset.config.image_h() == 224, "a preset's image size");
  require(vitrum::resolve_model(preset.name).config == preset.config, "a model by its name");
  try {
    vitrum::Predictor predictor("/nowhere", {.arch = preset.name});
  } catch (const vitrum::Error& error) {
    require(error.kind() == vitrum::ErrorKind::kInput, "kind of the error");
    require(std::string_view(error.what()) == "/nowhere: no such file", "text of the error");
    std::puts("the installed library works");
    return 0;
  }
}
