#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>

#include "vitrum/cli/bench_data.h"
#include "vitrum/cli/bench_serve.h"
#include "vitrum/cli/size_options.h"
#include "vitrum/cli/trace_table.h"
#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/infer/prepare.h"
#include "vitrum/runtime/finite.h"
#include "vitrum/runtime/link.h"
#include "vitrum/runtime/summary.h"
#include "vitrum/train/pretraining.h"
#include "vitrum/train/step.h"

namespace vitrum {
namespace {

struct Options : SizeOptions {
  std::string model, mode = "infer", recompute = "none", clock = "wall", data, teacher;
  std::string augment = "resized-crop-flip";
  int64_t batch = 32, steps = 10, warmup = 2, slices = 1;
  bool trace = false;
  ServeLoad serve;
};

using Clock = double (*)();  // in seconds
double wall_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// What all threads of this process have used: other work on the machine does not count.
double processor_clock() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds(Clock now, const std::function<void()>& work) {
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Most memory this process has held at once (VmHWM), in bytes.
int64_t peak_memory() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return 1024 * std::strtoll(line.c_str() + 6, nullptr, 10);
  return 0;
}

Batch synthetic_batch(const ModelConfig& c, int64_t size) {
  Batch batch;
  batch.count = size;
  batch.storage =
      allocate_host(static_cast<size_t>(size * c.channels() * c.image_h() * c.image_w()));
  PhiloxStream random(0, kAugmentStream, 0);
  for (uint8_t& pixel : batch.pixels()) pixel = static_cast<uint8_t>(random.next_u32());
  for (int64_t i = 0; i < size; ++i) {
    batch.labels.push_back(static_cast<int32_t>(i % std::max<int64_t>(c.classes(), 1)));
    batch.indices.push_back(i);
  }
  return batch;
}

// What is measured: steps are started one after the other, and finished together.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual void start() = 0;
  virtual void finish() = 0;
  virtual void run_traced(const Program::Trace& after) = 0;  // one step, kernel by kernel
};

// As a Predictor does it: a large batch on a CPU in parts.
class Inference final : public Workload {
 public:
  Inference(const ModelSpec& spec, int64_t batch, DType compute, Backend& backend)
      : batch_(synthetic_batch(spec.config, batch)),
        part_(std::gcd(batch, images_at_once(spec, backend, compute, batch))),
        model_(trace(graph_, spec, part_)),
        store_(graph_, backend),
        program_(compile(compute)),
        logits_(static_cast<size_t>(model_.logits.shape().numel())) {
    upload(0);
  }
  void start() override {
    for (int64_t first = 0; first < batch_.count; first += part_) {
      if (part_ < batch_.count) upload(first);
      program_.run();
    }
  }
  void finish() override { program_.download(logits_.data(), model_.logits); }
  void run_traced(const Program::Trace& after) override {
    for (int64_t first = 0; first < batch_.count; first += part_) program_.run_traced(after);
  }

 private:
  Program compile(DType compute) {
    CompileOptions options{.compute = compute};
    if (compute == DType::kE4M3)
      options.keeps_float = keeps_where_slower(graph_, store_.backend(), {});
    prepare(graph_, std::span(&model_.logits, 1), store_.backend(), options);
    fuse(graph_);
    store_.initialize(0);
    store_.freeze();
    return Program(graph_, std::span(&model_.logits, 1), store_, options);
  }
  void upload(int64_t first) {
    const auto image = static_cast<int64_t>(batch_.pixels().size()) / batch_.count;
    program_.upload(model_.image, batch_.pixels().data() + first * image);
  }

  Batch batch_;
  int64_t part_;
  Graph graph_{Mode::kInference};
  TracedModel model_;
  ParamStore store_;
  Program program_;
  std::vector<float> logits_;
};

// A preset takes the student's images and classes.
ModelSpec teacher_of(const std::string& model, const ModelSpec& student) {
  ModelSpec teacher = resolve_model(model);
  set_image_size(teacher, student.config.image_h(), student.config.image_w());
  set_classes(teacher, student.config.classes());
  validate(teacher.config);
  return teacher;
}

bool trains(const Options& o) { return o.mode == "train" || o.mode == "pretrain"; }

Recipe recipe(const Options& o) {
  Recipe recipe;
  if (o.mode == "pretrain") recipe.task = Task::kMae;
  recipe.batch_size = o.batch;
  recipe.slices = o.slices;
  if (!o.teacher.empty()) recipe.teacher = o.teacher, recipe.distillation = Distillation::kSoft;
  recipe.recompute = o.recompute == "cheap"   ? Recompute::kCheap
                     : o.recompute == "block" ? Recompute::kBlock
                                              : Recompute::kNone;
  return recipe;
}

// With VITRUM_NCCL=1 on a card as one process of several: it sends itself what it would send
// others.
class Training final : public Workload {
 public:
  Training(const ModelSpec& spec, const Options& o, DType compute, Backend& backend)
      : batch_(synthetic_batch(spec.config, o.batch / o.slices)),
        images_(o.batch),
        slices_(o.slices),
        link_(link_to_itself(backend)),
        train_(spec, recipe(o), compute, backend, InputStage::kPixels, link_.get()) {
    if (o.teacher.empty()) return;
    const TeacherViews views = train_.teacher_views();
    train_.set_teacher(
        has_weights(o.teacher)
            ? std::make_unique<Teacher>(recipe(o), spec, compute, backend, views)
            : std::make_unique<Teacher>(teacher_of(o.teacher, spec), compute, backend, views));
  }
  void start() override {
    if (slices_ == 1) return train_.run(batch_, kRate, step_++);
    for (int64_t k = 0; k < slices_; ++k)
      train_.backward(batch_, images_, step_ * slices_ + k), train_.fold(k);
    train_.sum();
    train_.update(kRate, step_++);
  }
  void finish() override { train_.results(); }
  void run_traced(const Program::Trace& after) override { train_.run_traced(after); }
  std::string link() const { return link_ ? link_->name() : ""; }

 private:
  static constexpr double kRate = 1e-4;

  std::shared_ptr<Link> link_to_itself(Backend& backend) {
    const char* wish = std::getenv("VITRUM_NCCL");
    const bool wanted = wish && std::string_view(wish) == "1" && !backend.host_visible();
    return wanted ? make_link(backend, alone_) : nullptr;
  }

  Batch batch_;
  int64_t images_, slices_;
  Alone alone_;
  std::shared_ptr<Link> link_;
  TrainStep train_;
  int64_t step_ = 0;
};

// What the backend reaches on one large matrix product: the roof that a model's speed is compared
// with.
class GemmProbe {
 public:
  GemmProbe(DType compute, Backend& backend)
      : size_(!backend.host_visible()         ? 8192
              : backend.name() == "reference" ? 128  // plain loops are as slow at any size
                                              : 1024),
        backend_(backend),
        x_(graph_.input("x", {size_, size_}, is_narrow(compute) ? DType::kBF16 : DType::kF32)),
        y_(layer(compute)),
        store_(graph_, backend),
        program_(compile(compute)) {
    // Noise, as in real work: a chip runs cooler, and so faster, on zeros.
    std::vector<std::byte> noise(program_[x_].bytes());
    PhiloxStream random(1, kAugmentStream, 0);
    for (size_t i = 0; i + 4 <= noise.size(); i += 4) {
      const uint32_t bits =
          (random.next_u32() & 0x807f807fu) | 0x3f003f00u;  // +-[0.5, 1) in either
      std::memcpy(&noise[i], &bits, 4);
    }
    program_.upload(x_, noise.data());
  }
  // The best of a few, so that a disturbance does not lower the roof.
  double flops_per_second(Clock now) {
    const double flops = 2 * std::pow(static_cast<double>(size_), 3);
    double best = 0;
    program_.run(), backend_.wait();
    const auto product = [&] {  // the last kernel of them; of fp8 others stand before it
      const size_t all = program_.kernels();
      all > 1 ? program_.run(all - 1, all) : program_.run();
      backend_.wait();
    };
    for (int i = 0; i < 3; ++i) best = std::max(best, flops / seconds(now, product));
    return best;
  }

 private:
  static bool is_narrow(DType compute) {
    return compute == DType::kBF16 || compute == DType::kE4M3;
  }
  // Named as a layer that may be one of eight bits; of fp8 are those behind a norm.
  Value layer(DType compute) {
    const Scope s(graph_, "blocks.0.probe");
    const Value x = compute == DType::kE4M3 ? layer_norm(s / "norm", x_, 1e-6f) : x_;
    return linear(s, x, size_, {.bias = false});
  }
  Program compile(DType compute) {
    store_.initialize(0);
    return Program(graph_, std::span(&y_, 1), store_, {.compute = compute});
  }

  int64_t size_;
  Backend& backend_;
  Graph graph_;
  Value x_, y_;
  ParamStore store_;
  Program program_;
};

struct Result {
  double seconds = 0;               // median of the steps
  double gemm_peak = 0, flops = 0;  // a second
  int64_t peak_bytes = 0, macs = 0;
  std::string link;  // over which it exchanged with itself
};

// Of what is computed: patches may be dropped, and tokens that nobody reads.
int64_t forward_macs(const ModelSpec& spec, const Options& o, const Backend& backend) {
  Graph g(trains(o) ? Mode::kTraining : Mode::kInference);
  if (o.mode == "pretrain") {
    trace_mae(g, spec, mae_for(recipe(o), spec), g.input("weight", {o.batch}, DType::kF32));
    return multiply_adds(g);
  }
  const TracedModel model = trace(g, spec, o.batch);
  CompileOptions options;
  if (!trains(o)) prepare(g, std::span(&model.logits, 1), backend, options);
  return multiply_adds(g);
}

int64_t teacher_macs(const ModelSpec& student, const Options& o) {
  if (o.teacher.empty()) return 0;
  Graph g(Mode::kInference);
  trace(g, has_weights(o.teacher) ? resolve_model(o.teacher) : teacher_of(o.teacher, student),
        o.batch);
  return multiply_adds(g);
}

Result measure(Workload& work, const ModelSpec& spec, const Options& o, DType compute,
               Backend& backend) {
  // A device that works on its own is given several steps at a time, as in training; alone, a step
  // is timed from start to result.
  const int64_t together = backend.host_visible() || o.batch == 1 ? 1 : 10;
  const auto steps = [&] {
    for (int64_t i = 0; i < together; ++i) work.start();
    work.finish();
  };
  for (int64_t i = 0; i < o.warmup; ++i) steps();
  const int64_t on_device = backend.peak_bytes();
  Result r{.peak_bytes = on_device > 0 ? on_device : peak_memory(),
           .macs = forward_macs(spec, o, backend)};
  GemmProbe probe(compute, backend);
  const Clock now = o.clock == "processor" ? processor_clock : wall_clock;
  probe.flops_per_second(now);
  std::vector<double> times;
  for (int64_t i = 0; i < o.steps; ++i) {
    if (i % 4 == 0) {
      r.gemm_peak = std::max(r.gemm_peak, probe.flops_per_second(now));
      steps();  // what the probe took from the caches is there again, as in work without it
    }
    times.push_back(seconds(now, steps) / static_cast<double>(together));
  }
  r.seconds = median(times);
  // Backward costs two products for each of forward's.
  const int64_t macs = r.macs * (trains(o) ? 3 : 1) + teacher_macs(spec, o);
  r.flops = 2.0 * static_cast<double>(macs) / r.seconds;
  return r;
}

std::string to_json(const Result& r, const Options& o, const std::string& device, DType compute,
                    const std::optional<TraceTable>& trace) {
  JsonWriter json;
  json.begin_object()
      .field("model", o.model)
      .field("mode", o.mode)
      .field("batch", o.batch)
      .field("slices", o.slices)
      .field("steps", o.steps);
  if (!r.link.empty()) json.field("link", r.link);
  if (!o.teacher.empty()) json.field("teacher", o.teacher);
  json.field("device", device).field("precision", name_of(compute));
  json.field("images_per_second", static_cast<double>(o.batch) / r.seconds)
      .field("milliseconds", 1e3 * r.seconds);
  json.field("peak_bytes", r.peak_bytes).field("mfu", r.flops / r.gemm_peak);
  json.field("gflops", 1e-9 * r.flops)
      .field("gemm_peak_gflops", 1e-9 * r.gemm_peak)
      .field("macs", r.macs);
  if (trace) trace->to_json(json.key("trace"));
  return json.end_object().str() + "\n";
}

std::string to_text(const Result& r, const Options& o, const std::string& device, DType compute) {
  std::string out = fmt::format("{}, {}, batch {}, {} on {}\n\n", o.model, o.mode, o.batch,
                                name_of(compute), device);
  if (!o.teacher.empty()) out += fmt::format("teacher      {}\n", o.teacher);
  if (!r.link.empty()) out += fmt::format("exchange     with itself, through {}\n", r.link);
  out += fmt::format("throughput   {:.1f} images/s\n", static_cast<double>(o.batch) / r.seconds);
  out += fmt::format("step         {:.2f} ms (median of {})\n", 1e3 * r.seconds, o.steps);
  out += fmt::format("memory       {} at most\n", human_bytes(r.peak_bytes));
  out += fmt::format("arithmetic   {:.1f} GFLOP/s\n", 1e-9 * r.flops);
  out += fmt::format("efficiency   {:.1f} % of a large matrix product's {:.1f} GFLOP/s\n",
                     100 * r.flops / r.gemm_peak, 1e-9 * r.gemm_peak);
  return out;
}

// Times first: to look at the results between kernels would empty the caches. Those on a card stay
// there: to fetch all that a large model computes takes minutes.
TraceTable traced(Workload& work, Backend& backend) {
  TraceTable table;
  work.start(), work.finish();
  work.run_traced([&](const Program::Step& step, double seconds) { table.add(step, seconds); });
  if (backend.host_visible())
    work.run_traced([&](const Program::Step& step, double) { require_finite(backend, step); });
  return table;
}

void check_slices(const Options& o) {
  if (o.slices == 1) return;
  if (!trains(o)) fail_usage("--slices is for --mode train and --mode pretrain");
  if (!std::has_single_bit(static_cast<uint64_t>(o.slices)) || o.batch % o.slices != 0)
    fail_usage("--slices {}: expected a power of two that divides --batch {}", o.slices, o.batch);
}

int run(const Options& o, const CommonOptions& common) {
  if (o.mode == "serve") return bench_serve(o.serve, common);
  if (o.model.empty()) fail_usage("--model is required, but for --mode serve");
  const ModelSpec spec = resolve_sized(o.model, o);
  if ((o.mode == "data") != !o.data.empty())
    fail_usage("--data DATA is for --mode data, and that needs it");
  if (o.mode == "data")
    return bench_data({o.data, o.augment, o.batch, o.steps, o.warmup}, spec, common);
  check_slices(o);
  if (!o.teacher.empty() && o.mode != "train") fail_usage("--teacher is for --mode train");
  const std::unique_ptr<Backend> backend = open_backend(common);
  DType compute = compute_precision(common, *backend);
  if (o.mode == "infer" && common.precision == "auto" && has_weights(o.model))
    for (const auto& [suits, bits] : {std::pair{backend->host_visible(), DType::kI8},
                                      std::pair{backend->multiplies_e4m3(), DType::kE4M3}})
      if (suits && !quantized_layers(o.model, spec, bits).empty()) compute = bits;
  std::unique_ptr<Workload> work;
  std::string link;
  if (trains(o)) {
    auto training = std::make_unique<Training>(spec, o, compute, *backend);
    link = training->link(), work = std::move(training);
  } else {
    work = std::make_unique<Inference>(spec, o.batch, compute, *backend);
  }
  Result result = measure(*work, spec, o, compute, *backend);
  result.link = link;
  std::optional<TraceTable> trace;
  if (o.trace) trace = traced(*work, *backend);
  if (common.json)
    print_out(to_json(result, o, backend->name(), compute, trace));
  else
    print_text(to_text(result, o, backend->name(), compute) + (trace ? trace->text() : ""));
  return 0;
}

}  // namespace

Verb bench_verb() {
  auto o = std::make_shared<Options>();
  std::vector<Option> options = {
      {.name = "--model",
       .target = &o->model,
       .help = "preset or model directory",
       .value = "MODEL"},
      {.name = "--mode",
       .target = &o->mode,
       .help =
           "what is measured: a model here (pretrain: as a masked autoencoder), how fast images of "
           "--data come ready for training, or a server at --url",
       .value = "NAME",
       .choices = {"infer", "train", "pretrain", "data", "serve"}},
      {"--data", &o->data, "for --mode data: the data set", "DATA"},
      {"--augment", &o->augment, "for --mode data: what is done to images, as in a recipe",
       "POLICY"},
      {.name = "--batch", .target = &o->batch, .help = "images in a batch", .min = 1, .max = 65536},
      {.name = "--slices",
       .target = &o->slices,
       .help =
           "for training: in how many parts a batch is computed, as for processes that share it",
       .min = 1,
       .max = 65536},
      {"--teacher", &o->teacher,
       "for --mode train: distil from this preset or model directory, softly", "MODEL"},
      {.name = "--steps", .target = &o->steps, .help = "steps to measure", .min = 1},
      {.name = "--warmup", .target = &o->warmup, .help = "steps before measuring", .min = 1},
      {.name = "--recompute",
       .target = &o->recompute,
       .help = "what training computes again to save memory",
       .value = "NAME",
       .choices = {"none", "cheap", "block"}},
      {.name = "--clock",
       .target = &o->clock,
       .help = "what times are of: the wall, or the processor, which other work does not slow",
       .value = "NAME",
       .choices = {"wall", "processor"}},
      {.name = "--trace",
       .target = &o->trace,
       .help = "then run one step kernel by kernel: where its time goes, and on a CPU whether "
               "all results are finite"}};
  for (Option& option : size_options(*o)) options.push_back(std::move(option));
  for (Option& option : serve_load_options(o->serve)) options.push_back(std::move(option));
  return {.name = "bench",
          .summary = "measure throughput, latency and memory of a model, or a server's latency",
          .examples = {"bench --model vit_tiny_patch16_224",
                       "bench --model vit_mnist --mode train --batch 128 --precision bf16",
                       "bench --model vit_c10_patch4_32 --mode train --teacher resnet18_cifar",
                       "bench --model vit_base_patch16_224 --mode data --data folder:DIR",
                       "bench --mode serve --url http://127.0.0.1:8080 --rate 50 photos/"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
