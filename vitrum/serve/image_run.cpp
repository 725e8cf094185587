#include "vitrum/serve/image_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum::serve {
namespace {

using Clock = Exchange::Clock;

int64_t microseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(Context& context, ExchangePtr exchange, ImageRun run)
      : context_(context),
        exchange_(std::move(exchange)),
        run_(std::move(run)),
        answers_(run_.images.size()),
        left_(run_.images.size()) {
    const auto count = static_cast<int64_t>(answers_.size());
    exchange_->images = count;
    exchange_->model = run_.model->name();
    context_.metrics.images += static_cast<uint64_t>(count);
    context_.metrics.images_waiting += count;
  }

  void start() {
    for (size_t i = 1; i < answers_.size(); ++i)
      context_.workers.post([self = shared_from_this(), i] { self->take(i); });
    take(0);
  }

 private:
  // Decodes an image and hands it to the model.
  void take(size_t i) {
    ImageAnswer& answer = answers_[i];
    const SharedDevice::Caller caller(run_.model->engine().predictor().device());
    if (!exchange_->wanted()) return drop(i);
    const auto start = Clock::now();
    try {
      answer.slot = run_.model->take_slot();
      prepare(run_.images[i], *answer.slot);
    } catch (const Error& e) {
      return refuse(i, e.kind() == ErrorKind::kExhausted ? 503 : 422, e.what());
    } catch (const std::bad_alloc&) {
      return refuse(i, 503, "out of memory");
    } catch (const std::exception&) {
      return refuse(i, 500, "the image could not be prepared");
    }
    const auto took = Clock::now() - start;
    exchange_->decode_us += microseconds(took);
    note_decode(std::chrono::duration<double>(took).count());
    submit(i);
  }

  void prepare(std::string_view bytes, ImageSlot& slot) {
    if (run_.decoded) {
      slot.size = {};  // the model's own
      std::memcpy(slot.pixels.data(), bytes.data(), std::min(bytes.size(), slot.pixels.size()));
      return;
    }
    const std::span encoded(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    DecodeOptions options;
    options.max_pixels = context_.options.limits.pixels;
    const Image image = decode_image(encoded, "image", options);
    slot.size = run_.model->predictor().preprocess(image, slot.pixels);
  }

  void note_decode(double seconds) {
    context_.metrics.decode.add(seconds);
    const double before = context_.decode_seconds.load(std::memory_order_relaxed);
    context_.decode_seconds.store(before == 0 ? seconds : 0.95 * before + 0.05 * seconds,
                                  std::memory_order_relaxed);
  }

  void submit(size_t i) {
    auto job = std::make_shared<Job>();
    ImageSlot& slot = *answers_[i].slot;
    job->priority = run_.priority;
    job->rows.push_back({.pixels = slot.pixels.data(),
                         .logits = slot.logits.empty() ? nullptr : slot.logits.data(),
                         .features = slot.features.data(),
                         .size = slot.size});
    job->wanted = [exchange = exchange_] { return exchange->wanted(); };
    job->done = [self = shared_from_this(), i](Job& job) { self->finish_job(i, job); };
    run_.model->engine().submit(std::move(job));
  }

  void finish_job(size_t i, Job& job) {
    if (job.dropped) return drop(i);
    const auto waited = job.started - job.queued, ran = job.finished - job.started;
    context_.metrics.queue.add(std::chrono::duration<double>(waited).count());
    exchange_->queue_us += microseconds(waited), exchange_->model_us += microseconds(ran);
    if (job.error) {
      // A card that failed once does not come back.
      if (!run_.model->predictor().backend().host_visible()) context_.faulty = true;
      return refuse(i, 503, "the model could not run");
    }
    if (!job.rows.front().finite)
      return refuse(i, 500, "the model answered with NaN or infinity; its weights may be damaged");
    finish_one();
  }

  void drop(size_t i) { refuse(i, 504, "the deadline passed before the model could run"); }
  void refuse(size_t i, int status, std::string error) {
    if (answers_[i].slot) run_.model->give_back(std::move(answers_[i].slot));
    answers_[i].status = status, answers_[i].error = std::move(error);
    finish_one();
  }

  void finish_one() {
    if (left_.fetch_sub(1) > 1) return;
    context_.metrics.images_waiting -= static_cast<int64_t>(answers_.size());
    Response response;
    try {
      response = run_.finish(answers_);
    } catch (const std::exception&) {
      response = error_response(500, "the answer could not be written", run_.errors);
    }
    for (ImageAnswer& answer : answers_)
      if (answer.slot) run_.model->give_back(std::move(answer.slot));
    exchange_->respond(std::move(response));
  }

  Context& context_;
  ExchangePtr exchange_;
  ImageRun run_;
  std::vector<ImageAnswer> answers_;
  std::atomic<size_t> left_;
};

// How long a request will have waited for others when its images are looked at: in line so far, and
// for what is under way.
double estimated_wait(const Context& context, const Exchange& exchange, const Engine& engine) {
  const int64_t before = context.metrics.images_waiting.load(std::memory_order_relaxed);
  const double decode = static_cast<double>(before) *
                        context.decode_seconds.load(std::memory_order_relaxed) /
                        static_cast<double>(context.workers.threads());
  const std::chrono::duration<double> so_far = Clock::now() - exchange.arrived;
  return so_far.count() + std::max(decode, engine.seconds_for(before));
}

}  // namespace

int status_of(const std::vector<ImageAnswer>& answers) {
  const bool any = std::any_of(answers.begin(), answers.end(),
                               [](const ImageAnswer& a) { return a.error.empty(); });
  return any || answers.empty() ? 200 : answers.front().status;
}

void run_images(Context& context, const ExchangePtr& exchange, ImageRun run) {
  const Limits& limits = context.options.limits;
  const auto count = static_cast<int64_t>(run.images.size());
  const auto refuse = [&](int status, const std::string& message) {
    exchange->respond(error_response(status, message, run.errors));
  };
  if (count == 0) return refuse(400, "there is no image in the request");
  if (count > limits.images)
    return refuse(413, fmt::format("a request has at most {} images", limits.images));
  const double wait = estimated_wait(context, *exchange, run.model->engine());
  if (wait > limits.wait_seconds) {
    Response busy = error_response(429, "too many images are waiting; try again later", run.errors);
    busy.headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(std::ceil(wait))));
    return exchange->respond(std::move(busy));
  }
  std::make_shared<Run>(context, exchange, std::move(run))->start();
}

}  // namespace vitrum::serve
