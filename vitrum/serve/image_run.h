// The images of one request through a model: decoded on the workers, computed in whatever batches
// form, answered together and in order. One bad image spoils nothing but its own answer.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/serve/context.h"
#include "vitrum/serve/exchange.h"
#include "vitrum/serve/router.h"

namespace vitrum::serve {

struct ImageAnswer {
  std::unique_ptr<ImageSlot> slot;  // logits and features; null where there is an error
  std::string error;
  int status = 200;  // of this image alone
};

struct ImageRun {
  ModelPtr model;
  ErrorForm errors = ErrorForm::kPlain;
  // Views into the request's body, or into `owned`: encoded images, or where `decoded` is set
  // pixels as the model takes them.
  std::vector<std::string_view> images;
  std::vector<std::string> owned = {};
  bool decoded = false;
  uint64_t priority = Job::kLast;                             // lower ones first
  std::function<Response(std::vector<ImageAnswer>&)> finish;  // called once, when all are there
};

// Answers the exchange now (refused, or nothing to do) or when the last image is done.
void run_images(Context& context, const ExchangePtr& exchange, ImageRun run);

// The status of a whole request: 200 where any image has an answer.
int status_of(const std::vector<ImageAnswer>& answers);

}  // namespace vitrum::serve
