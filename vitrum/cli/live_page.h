#pragma once
#include <fmt/format.h>

#include "vitrum/cli/verbs.h"
#include "vitrum/core/error.h"
#include "vitrum/report/live_report.h"

namespace vitrum {

// report.html of a run under way. A page that cannot be written is no reason to end a run.
class LivePage {
 public:
  LivePage(const Trainer& trainer, const CommonOptions& common)
      : report_(trainer), common_(common) {}

  void update() {
    attempt([&] { report_.update(); });
  }
  void finish(int signal) {  // what stopped the run, or 0
    attempt([&] { report_.finish(signal != 0 ? RunState::kStopped : RunState::kFinished); });
  }

 private:
  template <class Write>
  void attempt(const Write& write) const {
    try {
      write();
    } catch (const Error& error) {
      info(common_, fmt::format("no report.html: {}", error.what()));
    }
  }

  LiveReport report_;
  const CommonOptions& common_;
};

}  // namespace vitrum
