// What the functions of the C interface share: the model behind the handle, and the border that no
// exception crosses.
#pragma once
#include <memory>
#include <new>
#include <semaphore>
#include <string>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/infer/engine.h"
#include "vitrum/vitrum.h"

struct vitrum_model {
  vitrum_model(const std::string& path, const vitrum::PredictorOptions& options, bool coalesces);

  // A process that was forked has none of the threads; fails there.
  void check_process() const;

  std::shared_ptr<vitrum::Predictor> predictor;
  const vitrum::DecodeOptions decode;
  const int threads;                // that decode the images of one call
  std::vector<std::string> labels;  // for every class, so that predictions can point to them
  std::string info;

  const bool coalesces;  // images of calls that overlap are computed together
  // For who decodes, or computes in a lane: more would only keep the others from them.
  std::counting_semaphore<> cores;
  const int process;
};

namespace vitrum::c {

vitrum_status remember(ErrorKind kind, const char* text) noexcept;

// What an exception that is being handled means.
struct Problem {
  ErrorKind kind = ErrorKind::kFailed;
  std::string text;
};
Problem current_problem();

template <class Body>
vitrum_status guarded(const Body& body) noexcept {
  try {
    body();
    return VITRUM_OK;
  } catch (const std::bad_alloc&) {
    return remember(ErrorKind::kExhausted, "out of memory");
  } catch (...) {
    try {
      const Problem problem = current_problem();
      return remember(problem.kind, problem.text.c_str());
    } catch (...) {
      return remember(ErrorKind::kExhausted, "out of memory");
    }
  }
}

template <class T>
T& given(T* pointer, const char* name) {
  if (!pointer) fail_usage("{} is NULL", name);
  return *pointer;
}
inline vitrum_model& usable(vitrum_model* model) {
  given(model, "model").check_process();
  return *model;
}

// Fails on what makes no sense, naming it.
Image image_of(const vitrum_image& in, int64_t max_pixels);

}  // namespace vitrum::c
