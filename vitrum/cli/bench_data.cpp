#include "vitrum/cli/bench_data.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/data/loader.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/train/setup.h"

namespace vitrum {
namespace {

struct Seconds {
  double wall, processor;  // of all threads
};

Seconds now() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(wall).count(),
          static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec)};
}

// One epoch after the other, for ever.
class Batches {
 public:
  Batches(const Dataset& data, const LoaderConfig& config) : loader_(data, config) {
    loader_.start(0);
  }
  int64_t next() {
    while (!loader_.next(batch_)) loader_.start(++epoch_);
    return batch_.count;
  }

 private:
  Loader loader_;
  Batch batch_;
  int64_t epoch_ = 0;
};

}  // namespace

int bench_data(const DataBench& b, const ModelSpec& model, const CommonOptions& common) {
  const DataSplits data = open_data(b.data, /*test_needed=*/false);
  Recipe recipe;
  recipe.augment = b.augment;
  LoaderConfig config{.batch_size = b.batch, .shuffle = true};
  config.threads = common.threads > 0 ? static_cast<int>(common.threads) : available_cores();
  config.preprocess = preprocess_of(model);
  config.augment = augment_for(recipe, model);
  Batches batches(*data.train, config);
  for (int64_t i = 0; i < b.warmup; ++i) batches.next();
  const Seconds begin = now();
  int64_t images = 0;
  for (int64_t i = 0; i < b.steps; ++i) images += batches.next();
  const Seconds end = now();
  const double a_second = static_cast<double>(images) / (end.wall - begin.wall);
  const double a_core = static_cast<double>(images) / (end.processor - begin.processor);
  if (common.json) {
    JsonWriter json;
    json.begin_object().field("mode", "data").field("data", b.data).field("augment", b.augment);
    json.field("model", model.architecture).field("threads", config.threads);
    json.field("images", images).field("images_per_second", a_second);
    json.field("images_per_second_per_core", a_core).field("milliseconds", 1e3 / a_core);
    print_out(json.end_object().str() + "\n");
  } else {
    print_text(
        fmt::format("{}, {}, {}, {} images\n\nthroughput   {:.1f} images/s with {}\n"
                    "a core       {:.1f} images/s, {:.3f} ms an image\n",
                    b.data, b.augment, model.architecture, with_commas(images), a_second,
                    counted(config.threads, "thread"), a_core, 1e3 / a_core));
  }
  return 0;
}

}  // namespace vitrum
