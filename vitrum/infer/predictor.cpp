#include "vitrum/infer/predictor.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"
#include "vitrum/graph/taps.h"
#include "vitrum/infer/engine.h"
#include "vitrum/infer/prepare.h"
#include "vitrum/runtime/summary.h"

namespace vitrum {
namespace {

ModelSpec resolve(const std::string& model, const std::string& arch) {
  ModelSpec spec = resolve_model(model, arch);
  if (!has_weights(model)) fail_without_weights(model);
  return spec;
}

// Gives the model another size of images or patches; returns it as it was.
ModelConfig resize(ModelSpec& spec, const PredictorOptions& o) {
  ModelConfig stored = stored_config(spec);
  if (o.image_size) set_image_size(spec, o.image_size->height, o.image_size->width);
  if (o.patch_size) set_patch_size(spec, *o.patch_size);
  if (o.max_patches) set_max_patches(spec, *o.max_patches);
  validate(spec.config);
  return stored;
}

// What an image of the model becomes: one of its size, or of a shape of its own.
Preprocess input_of(const ModelSpec& spec, const std::vector<std::string>& taps) {
  Preprocess p = preprocess_of(spec);
  const auto* vit = spec.config.as<ViTConfig>();
  if (!vit || spec.preprocess.max_patches == 0) return p;
  if (!taps.empty())
    fail_usage(
        "{}: images keep their shapes, and what taps give has as many; give them one by "
        "--image-size",
        spec.architecture);
  p.max_patches = static_cast<int>(spec.preprocess.max_patches);
  p.patch_h = static_cast<int>(vit->patch_h), p.patch_w = static_cast<int>(vit->patch_w);
  return p;
}

// States the parameters, counts multiply-adds, and gives the shapes of the taps for one image,
// without the dimension for images where that is for images alone.
std::vector<Shape> record(Graph& g, const ModelSpec& spec, const std::vector<std::string>& names,
                          int64_t& macs) {
  trace(g, spec, 1);
  macs = multiply_adds(g);
  std::vector<Shape> shapes;
  for (Value v : tap(g, names)) {
    Shape& shape = shapes.emplace_back();
    for (int i = v.dim(0) == 1 ? 1 : 0; i < v.shape().rank(); ++i) shape.append(v.dim(i));
  }
  return shapes;
}

void refuse_broken(const FrozenWeights& weights, const std::string& path) {
  if (const std::string name = weights.not_finite(); !name.empty())
    fail_input("weights '{}': {} holds NaN or infinite numbers", path, name);
}

// What is stored in eight bits is meant for a processor's integers, or for a card that multiplies
// e4m3; others compute with the numbers that the bytes stand for.
DType suitable_precision(const Backend& backend, const FrozenWeights& weights) {
  const DType stored = weights.quantized();
  const bool suits = (stored == DType::kI8 && backend.host_visible()) ||
                     (stored == DType::kE4M3 && backend.multiplies_e4m3());
  return suits ? stored : backend.usual_precision();
}

}  // namespace

std::vector<Prediction> top_predictions(std::span<const float> logits,
                                        const std::vector<std::string>& labels, size_t count) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int i) { return logits[static_cast<size_t>(i)]; };
  const auto end = order.begin() + static_cast<ptrdiff_t>(std::min(count, order.size()));
  // NaN is never better than anything.
  std::partial_sort(order.begin(), end, order.end(), [&](int a, int b) {
    const bool nan_a = std::isnan(at(a)), nan_b = std::isnan(at(b));
    if (nan_a != nan_b) return nan_b;
    return nan_a || at(a) == at(b) ? a < b : at(a) > at(b);
  });
  const double top = logits.empty() ? 0 : static_cast<double>(at(order.front()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  std::vector<Prediction> best;
  for (auto i = order.begin(); i != end; ++i) {
    const auto index = static_cast<size_t>(*i);
    best.push_back({*i, index < labels.size() ? labels[index] : std::to_string(index),
                    static_cast<float>(std::exp(static_cast<double>(at(*i)) - top) / sum)});
  }
  return best;
}

Predictor::Predictor(const std::string& model, const PredictorOptions& options)
    : path_(model),
      options_(options),
      spec_(resolve(model, options.arch)),
      stored_(resize(spec_, options)),
      device_(options.shared_device ? options.shared_device
                                    : std::make_shared<SharedDevice>(DeviceOptions{
                                          .device = options.device, .threads = options.threads})),
      tap_shapes_(record(parameters_, spec_, options.taps, macs_)),
      weights_(model, spec_, parameters_, device_->backend(), stored_),
      precision_(options.precision.value_or(suitable_precision(device_->backend(), weights_))),
      preprocess_(input_of(spec_, options.taps)),
      at_once_(vitrum::images_at_once(macs_, device_->backend(), precision(), options.max_batch)) {
  const Preprocessor checked(preprocess_);  // fails here rather than at the first image
  if (precision_ == DType::kI8) block_layers(spec_, spec_.architecture);
  if (precision_ == DType::kE4M3) e4m3_layers(spec_, spec_.architecture);
  if (!options_.keeps_float && weights_.quantized() == precision_ && precision_ != DType::kF32)
    options_.keeps_float = [this](const std::string& layer) {
      return !weights_.is_quantized(layer);
    };
  room_.backend = &device_->backend();
  // Images that keep their shapes have too many programs for a set of them in each lane.
  if (preprocess_.max_patches == 0)
    for (auto& backend : make_lanes(device_->backend()))
      lanes_.push_back(std::make_unique<Lane>(std::move(backend)));
  engine_ = std::make_unique<Engine>(*this);
}

Predictor::~Predictor() = default;

// Parameters are the same whatever the shape: positions are a table that the program resizes.
ModelProgram& Predictor::program(Room& room, int64_t batch, InputStage from, InputSize size) {
  const InputSize usual{spec_.config.image_h(), spec_.config.image_w()};
  if (size == InputSize{}) size = usual;
  auto found = room.programs.find({from, size, batch});
  if (found == room.programs.end()) {
    // The largest first: it makes the arena that all of them share.
    if (size != usual && room.programs.empty())
      program(room, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(at_once_))), from);
    if (size != usual) drop_oldest_shape(room);
    ModelSpec spec = spec_;
    spec.config.set_image_size(size.height, size.width);
    CompileOptions options{.compute = precision(),
                           .keeps_float = options_.keeps_float,
                           .arena = &room.arena,
                           .backend = room.backend};
    if (precision() == DType::kE4M3 && !options_.e4m3_everywhere) {
      Graph g(Mode::kInference);
      trace(g, spec, batch, from);
      options.keeps_float = keeps_where_slower(g, device_->backend(), options.keeps_float);
    }
    auto fresh =
        std::make_unique<ModelProgram>(spec, weights_.store(), batch, options, from, options_.taps);
    found = room.programs.emplace(std::tuple(from, size, batch), Room::Compiled{std::move(fresh)})
                .first;
  }
  found->second.used = ++room.runs;
  return *found->second.program;
}

// Photos have a few shapes, but there may be hundreds.
void Predictor::drop_oldest_shape(Room& room) {
  constexpr size_t kMostPrograms = 64;
  if (room.programs.size() < kMostPrograms) return;
  room.programs.erase(std::ranges::min_element(
      room.programs, {}, [](const auto& entry) { return entry.second.used; }));
}

ModelProgram& Predictor::program(Lane& lane) {
  if (!lane.program) {
    const SharedDevice::Turn turn(*device_);
    lane.program = &program(lane.room, 1);
  }
  return *lane.program;
}

void Predictor::run_batches(InputStage from, size_t images, const Exchange& fill,
                            const Exchange& read) {
  for (size_t done = 0, batch; done < images; done += batch) {
    const size_t left = images - done, most = static_cast<size_t>(at_once_);
    batch = left >= most ? most : std::bit_floor(left);
    const SharedDevice::Turn turn(*device_);
    ModelProgram& program = this->program(room_, static_cast<int64_t>(batch), from);
    fill(program, done);
    program.run();
    read(program, done);
  }
}

void Predictor::run(std::span<const uint8_t> pixels, std::span<float> logits,
                    std::span<float> features, std::span<const std::span<float>> taps) {
  const size_t image = Preprocessor(preprocess_of(spec_)).bytes();
  const auto outputs = static_cast<size_t>(classes()), width = static_cast<size_t>(dimension());
  const size_t images = pixels.size() / image;
  if (pixels.size() != images * image || (!logits.empty() && logits.size() != images * outputs) ||
      (!features.empty() && features.size() != images * width))
    fail_usage("{}: {} bytes of pixels, {} logits and {} features do not belong together", path_,
               pixels.size(), logits.size(), features.size());
  auto job = std::make_shared<Job>();
  std::vector<float*> to_taps(images * taps.size());
  for (size_t i = 0; i < images; ++i) {
    const auto row_taps = std::span(to_taps).subspan(i * taps.size(), taps.size());
    for (size_t t = 0; t < taps.size(); ++t)
      row_taps[t] = taps[t].data() + i * static_cast<size_t>(tap_shapes_[t].numel());
    job->rows.push_back({.pixels = pixels.data() + i * image,
                         .logits = logits.empty() ? nullptr : logits.data() + i * outputs,
                         .features = features.empty() ? nullptr : features.data() + i * width,
                         .taps = row_taps});
  }
  run_job(job, logits.empty() ? features : logits);
}

void Predictor::run_job(const std::shared_ptr<Job>& job, std::span<const float> answer) {
  engine_->run(job);
  if (job->error) std::rethrow_exception(job->error);
  check_answer(answer);
}

void Predictor::run_rows(std::span<PredictorRow> rows, int64_t batch) {
  const SharedDevice::Turn turn(*device_);
  const InputSize shape = rows.empty() ? InputSize{} : rows.front().size;
  run(program(room_, batch, InputStage::kPixels, shape), room_, rows);
}

void Predictor::run_alone(PredictorRow& row, size_t number) {
  Lane& lane = *lanes_[number];
  const std::lock_guard turn(lane.turn);
  run(program(lane), lane.room, {&row, 1});
}

void Predictor::run(ModelProgram& program, Room& room, std::span<PredictorRow> rows) {
  const auto size = static_cast<size_t>(program.batch()), outputs = static_cast<size_t>(classes()),
             width = static_cast<size_t>(dimension());
  auto& [backend, arena, programs, runs, logits, features, tapped] = room;
  for (size_t i = 0; i < rows.size(); ++i) program.upload_image(i, rows[i].pixels);
  program.run();
  logits.resize(size * outputs), features.resize(size * width);
  if (outputs > 0) program.read_logits(logits.data());
  program.read_features(features.data());
  const bool wants_taps = !rows.empty() && !rows.front().taps.empty();
  tapped.resize(wants_taps ? tap_shapes_.size() : 0);
  for (size_t t = 0; t < tapped.size(); ++t) {
    tapped[t].resize(size * static_cast<size_t>(tap_shapes_[t].numel()));
    program.read_tap(t, tapped[t].data());
  }
  weights_.check_intact();
  for (size_t i = 0; i < rows.size(); ++i) {
    PredictorRow& row = rows[i];
    const auto row_logits = std::span(logits).subspan(i * outputs, outputs),
               row_features = std::span(features).subspan(i * width, width);
    row.finite = all_finite(row_logits) && all_finite(row_features);
    if (row.logits) std::ranges::copy(row_logits, row.logits);
    if (row.features) std::ranges::copy(row_features, row.features);
    for (size_t t = 0; t < row.taps.size(); ++t)
      std::copy_n(tapped[t].data() + i * (tapped[t].size() / size), tapped[t].size() / size,
                  row.taps[t]);
  }
}

// Others may use the machine meanwhile, and each run that they push aside takes longer: the least
// of several counts. The sizes take turns, so that what others do for a while concerns all of them,
// and small ones run as long as they need to be seen undisturbed.
CostTable Predictor::warm_up() {
  constexpr int kRounds = 4;
  constexpr double kRound = 0.006;  // seconds of a size
  const SharedDevice::Turn turn(*device_);
  std::vector<CostTable::Entry> entries;
  std::vector<float> features, logits;
  const auto seconds = [&](ModelProgram& program) {
    features.resize(static_cast<size_t>(program.batch() * dimension()));
    const auto start = std::chrono::steady_clock::now();
    program.run();
    program.read_features(features.data());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // The largest first: it makes the arena that all of them share.
  for (int64_t batch = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(at_once_)));
       batch >= 1; batch /= 2) {
    ModelProgram& program = this->program(room_, batch);
    seconds(program);  // captures graphs
    logits.resize(static_cast<size_t>(batch * classes()));
    if (!logits.empty()) program.read_logits(logits.data());
    if (!all_finite(features) || !all_finite(logits)) refuse_broken(weights_, path_);
    entries.push_back({batch, std::numeric_limits<double>::infinity()});
  }
  std::reverse(entries.begin(), entries.end());
  for (int round = 0; round < kRounds; ++round)
    for (auto& [batch, best] : entries) {
      double spent = 0;
      for (double last; spent < kRound; spent += last)
        best = std::min(best, last = seconds(program(room_, batch)));
    }
  return CostTable(std::move(entries));
}

// The least seconds that an image takes.
double Predictor::time_alone(Lane& lane, double enough) {
  const std::lock_guard turn(lane.turn);
  ModelProgram& program = this->program(lane);
  std::vector<float> features(static_cast<size_t>(dimension()));
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int runs = 0; runs < 4 || (spent < enough && runs < 100); ++runs) {
    const auto start = std::chrono::steady_clock::now();
    program.run();
    program.read_features(features.data());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    spent += seconds.count(), best = std::min(best, seconds.count());
  }
  return best;
}

double Predictor::warm_up_lanes() {
  constexpr double kEnough = 0.1;  // seconds
  for (const auto& lane : lanes_) {
    const std::lock_guard turn(lane->turn);
    program(*lane);
  }
  std::vector<double> rates(lanes_.size());
  ThreadPool pool(static_cast<int>(lanes_.size()));
  pool.run(static_cast<int64_t>(lanes_.size()), [&](int64_t task, int) {
    const auto i = static_cast<size_t>(task);
    rates[i] = 1 / time_alone(*lanes_[i], kEnough);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.);
}

void Predictor::drop_lanes() {
  for (const auto& lane : lanes_) {
    const std::lock_guard turn(lane->turn);
    lane->program = nullptr, lane->room.programs.clear(), lane->room.arena = {};
  }
}

void Predictor::check_answer(std::span<const float> answer) const {
  weights_.check_intact();
  if (all_finite(answer)) return;
  refuse_broken(weights_, path_);
  fail("{} answers with NaN or infinity; `vitrum forward --trace` finds the layer", path_);
}

InputSize Predictor::preprocess(const Image& image, std::span<uint8_t> pixels) const {
  // Its scratch is as large as the largest image it saw, so one that saw a huge one is not kept.
  constexpr int64_t kMostPixels = 4'000'000;
  auto preprocessor = preprocessors_.take();
  if (!preprocessor) preprocessor = std::make_unique<Preprocessor>(preprocess_);
  const InputSize size = preprocessor->apply(image, pixels);
  if (int64_t{image.width} * image.height <= kMostPixels)
    preprocessors_.give(std::move(preprocessor));
  return size;
}

Predictor::Outputs Predictor::run_one(const Image& image) {
  const SharedDevice::Caller caller(*device_);
  std::vector<uint8_t> pixels(Preprocessor(preprocess_).bytes());
  const InputSize size = preprocess(image, pixels);
  Outputs out{std::vector<float>(static_cast<size_t>(classes())),
              std::vector<float>(static_cast<size_t>(dimension()))};
  auto job = std::make_shared<Job>();
  job->rows.push_back({.pixels = pixels.data(),
                       .logits = out.logits.empty() ? nullptr : out.logits.data(),
                       .features = out.features.data(),
                       .size = size});
  run_job(job, out.logits.empty() ? out.features : out.logits);
  return out;
}

std::vector<Prediction> Predictor::classify(const std::string& path, size_t top_k) {
  return classify(read_image(path, options_.decode), top_k);
}

std::vector<Prediction> Predictor::classify(std::span<const uint8_t> encoded, size_t top_k) {
  return classify(decode_image(encoded, "image", options_.decode), top_k);
}

std::vector<Prediction> Predictor::classify(const Image& image, size_t top_k) {
  if (classes() == 0) fail_usage("{} has no head to classify with", spec_.architecture);
  return top_predictions(run_one(image).logits, spec_.labels, top_k);
}

std::vector<float> Predictor::features(const std::string& path) {
  return features(read_image(path, options_.decode));
}

std::vector<float> Predictor::features(std::span<const uint8_t> encoded) {
  return features(decode_image(encoded, "image", options_.decode));
}

std::vector<float> Predictor::features(const Image& image) { return run_one(image).features; }

}  // namespace vitrum
