// What a trainer is before its first step: data, programs, teacher, and a run directory.
#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <string_view>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/parallel.h"
#include "vitrum/runtime/finite.h"
#include "vitrum/train/environment.h"
#include "vitrum/train/teacher_logits.h"
#include "vitrum/train/trainer.h"

namespace vitrum {
namespace {

Recipe resolved(Recipe recipe, const Backend& backend, const Communicator* comm) {
  if (recipe.teacher && recipe.teacher->empty()) forget_teacher(recipe);
  check_recipe(recipe);
  if (comm && comm->size() > recipe.slices)
    fail_usage("{} processes, and a batch of {} slices: each needs one at least; set slices = {}",
               comm->size(), recipe.slices, std::bit_ceil(static_cast<uint64_t>(comm->size())));
  if (recipe.precision == Precision::kAuto)
    recipe.precision =
        backend.usual_precision() == DType::kBF16 ? Precision::kBF16 : Precision::kF32;
  return recipe;
}

int64_t epochs_of(const Recipe& recipe, int64_t images) {
  const int64_t steps = ceil_div(ceil_div(images, recipe.batch_size), recipe.accumulate);
  return recipe.max_steps > 0 ? std::min(recipe.epochs, ceil_div(recipe.max_steps, steps))
                              : recipe.epochs;
}

// A resumed run may become longer, or look at itself more often; anything else would make it
// another run.
void refuse_other_recipe(const Recipe& recipe, const std::string& run) {
  constexpr std::array<std::string_view, 9> kFree = {
      "epochs",     "max_steps", "eval_batch_size", "checkpoint_every", "save_every",
      "eval_every", "workers",   "patience",        "data_on_device"};
  for (const std::string& key : changed_keys(recipe_of_run(run), recipe))
    if (std::find(kFree.begin(), kFree.end(), key) == kFree.end())
      fail_usage("'{}' was started with another {}; a resumed run cannot change it", run, key);
}

TrainDataOptions data_options(const RunOptions& options) {
  TrainDataOptions data{.threads = options.device.threads, .quiet = options.quiet};
  if (options.resume) data.skipped = load_skipped(options.out);
  return data;
}

// By which kernels a run computes, where they were chosen by timing.
std::string choices_path(const std::string& run) { return run + "/state/choices.txt"; }

// What a backend is without how many threads it has, which changes no bits.
std::string arithmetic_of(const Backend& backend) {
  const std::string name = backend.name();
  return name.substr(0, name.ends_with(" threads)") ? name.rfind(", ") : name.npos);
}

void require_same(Communicator& comm, const std::string& what, const std::string& own) {
  const std::vector<std::string> all = all_gather_text(comm, own);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      fail_usage("{} has another {} than {}", comm.name_of(static_cast<int>(r)), what,
                 comm.name_of(0));
}

}  // namespace

std::optional<Trainer::Features> Trainer::features_for(const Recipe& recipe, const ModelSpec& model,
                                                       const TrainData& data) {
  if (!vitrum::keeps_features(recipe, model, data)) return {};
  const int64_t width = feature_width(model.config);
  return Features{{data.train(), width}, {data.test(), width}};
}

LoaderConfig loader_config(const Recipe& recipe, const ModelSpec& model, const Dataset& data,
                           int threads) {
  // Images in memory cost next to nothing, unless a policy works on them; files are decoded: on as
  // many threads as there are.
  Augment augment = augment_for(recipe, model);
  const bool costly = data.image_size().height == 0 || !augment.policies.empty();
  const int usual = costly ? (threads > 0 ? threads : available_cores()) : 1;
  return {.batch_size = std::min(recipe.slice_size(), std::max<int64_t>(data.size(), 1)),
          .shuffle = true,
          .seed = static_cast<uint64_t>(recipe.seed),
          .threads = recipe.workers > 0 ? static_cast<int>(recipe.workers) : usual,
          .preprocess = preprocess_of(model),
          .augment = std::move(augment),
          .mix = mix_for(recipe),
          .strong_epochs = strong_epochs(recipe, epochs_of(recipe, data.size())),
          .repeat = static_cast<int>(recipe.repeat)};
}

int64_t eval_batch(const Recipe& recipe, int64_t images) {
  return std::min(recipe.eval_batch_size.value_or(recipe.batch_size), images);
}

LoaderConfig test_config(LoaderConfig config, const Recipe& recipe, int64_t images) {
  config.batch_size = eval_batch(recipe, images);
  config.shuffle = false, config.augment = {}, config.mix = {}, config.repeat = 1;
  return config;
}

Trainer::Trainer(const Recipe& recipe, const RunOptions& options)
    : options_(options),
      backend_(make_backend(options.device)),
      recipe_(resolved(recipe, *backend_, options.comm)),
      data_(after("device"), data_options(options)),
      model_(model_for(after("data"), data_.train())),
      features_(features_for(recipe_, model_, data_)),
      train_loader_(
          features_ ? features_->train : data_.train(),
          train_turns(fed(loader_config(recipe_, model_, data_.train(), options.device.threads),
                          data_.train()))),
      test_loader_(features_ ? features_->test : tested(),
                   test_turns(fed(
                       test_config(loader_config(recipe_, model_, tested(), options.device.threads),
                                   recipe_, tested().size()),
                       tested()))),
      schedule_(schedule_of(recipe_, ceil_div(train_loader_.batches(), recipe_.leaves()))),
      link_(connect()),
      // Whole images take the most memory: what cannot end does not begin.
      step_(last_model(), step_recipe(), compute(), *backend_, source(), link_.get()) {
  const Arena judged = ema() ? Arena::kEma : Arena::kMaster;
  const int64_t batch = test_loader_.config().batch_size;
  if (!pretrains())
    evaluator_.emplace(model_, step_.store(), batch, compute(), judged, source());
  else if (has_test())
    masked_.emplace(recipe_, model_, step_.store(), batch, judged);
  if (evaluator_) evaluator_->set_tta(recipe_.eval_tta);
  model_.held_out = data_.held_out();
  laps_.end("programs");
  set_images();
  laps_.end("images");
  std::unique_ptr<Teacher> teacher;
  if (recipe_.teacher)
    teacher = std::make_unique<Teacher>(recipe_, model_, compute_for(recipe_), *backend_,
                                        step_.teacher_views());
  settle_choices();
  if (recipe_.teacher) laps_.end("teacher");
  if (teacher) set_teacher(std::move(teacher));
  if (options.trace) set_trace();
  if (options.resume || writes()) open_run();
  if (comm()) compare_processes();
  if (!writes()) return;
  if (step_.teacher()) step_.teacher()->note_in(run_);
  if (const std::string choices = backend_->choices(); !choices.empty()) {
    ensure_directory(run_ + "/state");
    write_file_atomic(choices_path(run_), choices);
  }
  if (recipe_.on_bad_image == OnBadImage::kSkip) save_skipped(run_, data_.skipped());
  write_file_atomic(config_path(run_), to_toml(recipe_));
  write_file_atomic(run_ + "/env.json", environment_json(*backend_, options.device.threads));
  const ModelCard card{
      .recipe = recipe_,
      .model = model_,
      .classes = data_.test().classes(),
      .train_images = data_.train().size(),
      .test_images = data_.test().size(),
      .held_out = recipe_.holdout > 0,
      .decoder = pretrains() ? std::optional(mae_for(recipe_, model_)) : std::nullopt};
  saver_ = std::make_unique<Saver>(run_, card, judged, at_);
  laps_.end("run directory");
}

void Trainer::open_run() {
  run_ = options_.resume ? options_.out : make_run_dir(options_.out, options_.name);
  if (writes()) lock_ = std::make_unique<RunLock>(run_);
  if (options_.resume) resume();
}

LoaderConfig Trainer::train_turns(LoaderConfig config) const {
  const Stretch own = leaves_of(comm() ? comm()->rank() : 0, processes(), recipe_.leaves());
  config.turns = {.every = recipe_.leaves(), .first = own.first, .count = own.size()};
  return config;
}

LoaderConfig Trainer::test_turns(LoaderConfig config) const {
  if (comm()) config.turns = {.every = comm()->size(), .first = comm()->rank(), .count = 1};
  return config;
}

void Trainer::compare_processes() const {
  const Preprocess preprocess = loader_config(recipe_, model_, data_.train(), 1).preprocess;
  const auto digest = [&](const Dataset& data) {
    return teacher_logits_key("", 0, data, preprocess).data;
  };
  // f32 is the same on every processor.
  const bool narrow = recipe_.precision == Precision::kBF16;
  const bool differs = narrow || !backend_->host_visible();
  const std::vector<std::pair<std::string, std::string>> own = {
      {"version of vitrum", library_version()},
      {"build of vitrum", program_digest()},
      {"build of the CUDA backend",
       backend_->host_visible() ? "" : library_digest("libvitrum_cuda.so")},
      {"recipe", to_toml(recipe_)},
      {"set of training images", digest(data_.train())},
      {"set of test images", digest(data_.test())},
      {"device or instruction set", differs ? arithmetic_of(*backend_) : ""},
      {"state to go on from", fmt::format("step {}", at_.step)}};
  for (const auto& [what, value] : own) require_same(*comm(), what, value);
}

Recipe Trainer::step_recipe() const {
  Recipe recipe = recipe_;
  recipe.batch_size = batch_size();
  return recipe;
}

float Trainer::patch_drop(int64_t epoch) const {
  const auto* vit = model_.config.as<ViTConfig>();
  return vit && epoch < train_loader_.config().strong_epochs ? vit->patch_drop : 0;
}

ModelSpec Trainer::last_model() const {
  ModelSpec model = model_;
  if (auto* vit = model.config.as<ViTConfig>()) vit->patch_drop = patch_drop(total_epochs() - 1);
  return model;
}

std::shared_ptr<Link> Trainer::connect() {
  std::shared_ptr<Link> link;
  if (comm()) {
    require_same(*comm(), "device", backend_->host_visible() ? "cpu" : backend_->name());
    link = make_link(*backend_, *comm());
  }
  if (recipe_.slices == 1) return link;
  if (!writes()) {
    backend_->share_choices(all_gather_text(*comm(), "")[0], /*more=*/false);
    return link;
  }
  const std::string path = choices_path(options_.out);
  std::error_code ignored;
  const bool known = options_.resume && std::filesystem::exists(path, ignored);
  backend_->share_choices(known ? read_file(path) : "", /*more=*/true);
  return link;
}

void Trainer::settle_choices() {
  if (recipe_.slices == 1 || !writes()) return;
  const std::string made = backend_->choices();
  if (comm()) all_gather_text(*comm(), made);
  backend_->share_choices(made, /*more=*/false);
}

void Trainer::set_teacher(std::unique_ptr<Teacher> teacher) {
  if (recipe_.teacher_logits) {
    LoaderConfig plain = loader_config(recipe_, model_, data_.train(), options_.device.threads);
    const bool flips = flips_images_alone(recipe_);
    plain.shuffle = false, plain.augment.flip = false;
    if (!flips && !shows_images_alike(recipe_))
      fail_usage(
          "teacher_logits holds one answer an image, or two with augment = \"flip\", and "
          "augmentation makes another of it every time; leave out one of the two");
    if (!writes()) largest_of(*comm(), 0);  // the first writes the file where it is missing
    teacher->use_file(*recipe_.teacher_logits, data_.train(), plain, flips, options_.quiet);
    if (comm() && writes()) largest_of(*comm(), 0);
  }
  step_.set_teacher(std::move(teacher));
}

void Trainer::set_trace() {
  step_.set_trace([this](const Program::Step& step, double seconds) {
    require_finite(*backend_, step, fmt::format("step {}: ", at_.step + 1));
    options_.trace(step, seconds);
  });
}

// Without a checkpoint the run was killed before its first one: it starts again.
void Trainer::resume() {
  refuse_other_recipe(recipe_, run_);
  if (!has_checkpoint(run_)) return;
  at_ = load_checkpoint(run_, step_.store());
  const int64_t in_epoch = at_.step - at_.epochs * steps_per_epoch();
  const bool finished = at_.epochs >= total_epochs();
  if (!finished && (in_epoch < 0 || in_epoch > steps_per_epoch()))
    fail_input(
        "'{}': step {} does not lie in epoch {} of {} steps; the data must be as they were, and a "
        "run that max_steps ended cannot become longer",
        checkpoint_path(run_), at_.step, at_.epochs + 1, steps_per_epoch());
}

LoaderConfig Trainer::fed(LoaderConfig config, const Dataset& images) const {
  if (features_)
    config.preprocess = feature_preprocess(feature_width(model_.config));
  else
    config.rows = on_device(config, images);
  return config;
}

bool Trainer::on_device(const LoaderConfig& config, const Dataset& images) const {
  const bool wanted = recipe_.data_on_device == OnDevice::kOn ||
                      (recipe_.data_on_device == OnDevice::kAuto && !backend_->host_visible());
  return wanted && why_not_resident(images, config).empty();
}

void Trainer::set_images() {
  const auto keep = [&](const Dataset& images, const Loader& loader, auto& user) {
    if (!loader.config().rows) return;
    auto kept =
        std::make_unique<ResidentImages>(images, loader.config(), step_.store(), user.pixels());
    image_bytes_ += kept->bytes();
    user.set_images(std::move(kept));
  };
  if (recipe_.data_on_device == OnDevice::kOn && !train_loader_.config().rows)
    fail_usage("data_on_device = \"on\": {}",
               features_ ? "only the head learns, from features that the host keeps"
                         : why_not_resident(data_.train(), train_loader_.config()));
  keep(data_.train(), train_loader_, step_);
  if (evaluator_) keep(data_.test(), test_loader_, *evaluator_);
  if (masked_) keep(data_.test(), test_loader_, *masked_);
}

}  // namespace vitrum
