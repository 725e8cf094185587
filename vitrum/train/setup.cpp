#include "vitrum/train/setup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/sha.h"
#include "vitrum/core/shown.h"
#include "vitrum/data/check.h"
#include "vitrum/data/resize.h"
#include "vitrum/models/model.h"
#include "vitrum/train/lora.h"
#include "vitrum/train/pretraining.h"

namespace vitrum {
namespace {

// Where a family can drop; what a model that drops nowhere starts with comes first: the places of
// the ViT paper, and timm's of a Swin.
struct DropPlaces {
  std::vector<float*> all;
  size_t usual;
};
DropPlaces drop_places(ViTConfig& c) {
  return {{&c.drop_pos, &c.drop_act, &c.drop_mlp, &c.drop_attn, &c.drop_proj}, 3};
}
DropPlaces drop_places(SwinConfig& c) {
  return {{&c.drop_proj, &c.drop_act, &c.drop_mlp, &c.drop_attn}, 3};
}
DropPlaces drop_places(SwinV2Config& c) { return drop_places(static_cast<SwinConfig&>(c)); }
DropPlaces drop_places(auto&) { return {{}, 0}; }

// Where a model drops already, it drops with the new probability.
void set_dropout(ModelSpec& model, double dropout) {
  DropPlaces places = model.config.visit([](auto& c) { return drop_places(c); });
  if (places.all.empty())
    fail_usage("dropout: {} has no dropout; leave the key out", model.architecture);
  const auto drops = [](const float* place) { return *place > 0; };
  if (std::none_of(places.all.begin(), places.all.end(), drops))
    places.all.resize(places.usual);
  else
    std::erase_if(places.all, [&](const float* place) { return !drops(place); });
  for (float* place : places.all) *place = static_cast<float>(dropout);
}

void set_patch_drop(ModelSpec& model, double drop) {
  auto* vit = model.config.as<ViTConfig>();
  if (!vit)
    fail_usage(
        "patch_drop: {} needs all of its patches, only ViT and DeiT do not; leave the key out",
        model.architecture);
  vit->patch_drop = static_cast<float>(drop);
}

std::vector<float> per_channel(const std::vector<double>& values, int64_t channels,
                               std::string_view key) {
  const std::vector<float> narrow(values.begin(), values.end());
  const auto n = static_cast<int64_t>(narrow.size());
  if (n == channels || n == 0) return narrow;
  if (n == 1) return std::vector<float>(static_cast<size_t>(channels), narrow[0]);
  fail_usage("{} has {} numbers, the model takes {} channels", key, n, channels);
}

void set_preprocessing(ModelSpec& model, const Recipe& recipe) {
  Preprocessing& p = model.preprocess;
  const int64_t channels = model.config.channels();
  if (recipe.mean) p.mean = per_channel(*recipe.mean, channels, "mean");
  if (recipe.std) p.std = per_channel(*recipe.std, channels, "std");
  if (p.mean.empty() != p.std.empty())
    fail_usage("only one of mean and std is given; {} needs both or none", model.architecture);
  if (recipe.interpolation) p.interpolation = name_of(parse_filter(*recipe.interpolation));
  if (recipe.crop_pct) p.crop_pct = *recipe.crop_pct, p.resize = 0;
  if (recipe.resize) p.crop_mode = *recipe.resize == ResizeMode::kSquash ? "squash" : "center";
}

// A directory says itself what its weights are of; of a file, the recipe's model does.
ModelSpec starting_model(const Recipe& recipe) {
  const std::string& weights = recipe.weights;
  if (weights.empty()) return resolve_model(recipe.model);
  if (!has_weights(weights))
    fail_input("weights '{}': no such file or directory; {}", weights, how_to_get(weights));
  if (is_model_dir(weights + "/best"))
    fail_input("weights '{0}' are a run's; its model is {0}/best", weights);
  if (!is_model_dir(weights) && recipe.model.empty())
    fail_usage("weights '{}' do not say what model they are of; add its name as --model", weights);
  if (!is_model_dir(weights)) return resolve_model(weights, recipe.model);
  ModelSpec stored = resolve_model(weights);
  stored.stored = {};  // what is trained is of the size that it is trained at
  stored.preprocess.max_patches = 0;
  if (recipe.model.empty()) return stored;
  ModelSpec model = resolve_model(recipe.model);
  if (!stored.config.same_family(model.config) ||
      feature_width(stored.config) != feature_width(model.config))
    fail_input("weights '{}' are of {}, not of {}; leave out the model, or give weights of it",
               weights, stored.architecture, model.architecture);
  const int64_t height = model.preprocess.height, width = model.preprocess.width;
  model.preprocess = stored.preprocess;
  set_image_size(model, height, width);
  return model;
}

void set_head(ModelSpec& model, const Recipe& recipe, const Dataset& data) {
  if (recipe.task == Task::kMae) {
    model.fixed_classes = false;
    if (auto* vit = model.config.as<ViTConfig>()) vit->patch_drop = 0;
    return set_classes(model, 0);
  }
  const auto in_data = static_cast<int64_t>(data.classes().size());
  const int64_t own = model.fixed_classes ? model.config.classes() : in_data;
  set_classes(model, recipe.num_classes.value_or(own));
  if (model.config.classes() < in_data)
    fail_usage("{} has {} outputs, the data has {} classes", model.architecture,
               model.config.classes(), in_data);
  model.labels = model.config.classes() == in_data ? data.classes() : std::vector<std::string>();
  model.class_ids.clear();
  if (recipe.head_bias) model.config.set_head_bias(*recipe.head_bias);
}

std::array<double, 2> pair_of(const std::vector<double>& numbers, std::string_view key) {
  if (numbers.size() != 2) fail_usage("{}: expected two numbers, from and to", key);
  return {numbers[0], numbers[1]};
}

// One number stands for brightness, contrast and saturation, as in timm.
std::array<double, 4> jitter_of(const std::vector<double>& numbers) {
  if (numbers.empty()) return {};
  if (numbers.size() == 1) return {numbers[0], numbers[0], numbers[0], 0};
  if (numbers.size() != 3 && numbers.size() != 4)
    fail_usage("color_jitter has {} numbers; expected 1, 3 or 4", numbers.size());
  const double hue = numbers.size() == 4 ? numbers[3] : 0;
  if (hue > 0.5) fail_usage("color_jitter: hue {}; expected 0 to 0.5", hue);
  return {numbers[0], numbers[1], numbers[2], hue};
}

std::vector<SkippedImage> unreadable(const Dataset& images, const TrainDataOptions& options) {
  Progress progress("checking images", images.size(), options.quiet);
  const std::vector<CheckedImage> checked = check_images(
      images,
      {.threads = options.threads, .progress = [&](int64_t done) { progress.update(done); }});
  progress.clear();
  std::vector<SkippedImage> bad;
  for (size_t i = 0; i < checked.size(); ++i)
    if (!checked[i].error.empty())
      bad.push_back({images.name(static_cast<int64_t>(i)), checked[i].error});
  return bad;
}

std::unique_ptr<Dataset> without(const Dataset& images, const std::vector<SkippedImage>& skipped) {
  std::set<std::string_view> names;
  for (const SkippedImage& s : skipped) names.insert(s.image);
  std::vector<int64_t> good;
  for (int64_t i = 0; i < images.size(); ++i)
    if (!names.contains(images.name(i))) good.push_back(i);
  if (good.empty())
    fail_input("not one of {} images can be read: {}", images.size(), skipped[0].error);
  return select_images(images, std::move(good));
}

// Labels in their order: adding, removing and renaming images nearly always changes them.
std::string label_digest(const Dataset& images) {
  std::string labels;
  for (int64_t i = 0; i < images.size(); ++i) labels += std::to_string(images.label(i)) + ",";
  return sha256(labels).substr(0, 16);
}

}  // namespace

TrainData::TrainData(const Recipe& recipe, const TrainDataOptions& options)
    : splits_(open_data(recipe.data,
                        /*test_needed=*/recipe.holdout == 0 && recipe.task == Task::kClassify,
                        options.decode)) {
  if (recipe.on_bad_image == OnBadImage::kSkip) skip_bad(options);
  const bool for_scan = !recipe.lr_scan.empty() && splits_.test;
  if (recipe.holdout > 0 && !for_scan) hold_out(recipe);
  if (!held_ && !splits_.test) held_ = select_images(all_train(), {});  // who learns without labels
  if (recipe.subset > 0) {
    some_train_ = take_images(all_train(), recipe.subset, static_cast<uint64_t>(recipe.seed));
    some_test_ = take_images(all_test(), recipe.subset, static_cast<uint64_t>(recipe.seed));
  }
}

void TrainData::skip_bad(const TrainDataOptions& options) {
  skipped_ = options.skipped ? *options.skipped : std::vector<SkippedImage>();
  for (auto [all, good] :
       {std::pair(&splits_.train, &good_.train), std::pair(&splits_.test, &good_.test)}) {
    // Images in memory have been read.
    if (!*all || (*all)->image_size().height > 0) continue;
    if (!options.skipped)
      for (SkippedImage& bad : unreadable(**all, options)) skipped_.push_back(std::move(bad));
    *good = without(**all, skipped_);
  }
}

void TrainData::hold_out(const Recipe& recipe) {
  const Dataset& all = good_train();
  std::tie(kept_, held_) = split_holdout(all, recipe.holdout, static_cast<uint64_t>(recipe.seed));
  held_out_ = {.fraction = recipe.holdout,
               .seed = recipe.seed,
               .subset = recipe.subset,
               .skips_bad = recipe.on_bad_image == OnBadImage::kSkip,
               .images = all.size(),
               .labels = label_digest(all)};
}

// Only what reads behind the final norm: other ways have other norms, which the weights do not
// have.
static void set_pool(ModelSpec& model, const std::string& name) {
  const std::pair<std::string_view, ViTPool> kPools[] = {
      {"token", ViTPool::kToken},
      {"mean", ViTPool::kNormedMean},
      {"token_and_mean", ViTPool::kTokenAndMean}};
  if (name == "model") return;
  const auto named = std::ranges::find(kPools, name, [](const auto& p) { return p.first; });
  if (named == std::end(kPools))
    fail_usage("pool is '{}'; expected token, mean, token_and_mean or model", shown(name));
  ViTConfig* vit = model.config.as<ViTConfig>();
  const bool fits =
      vit && vit->class_token && !vit->distilled &&
      std::ranges::any_of(kPools, [&](const auto& p) { return p.second == vit->pool; });
  if (!fits)
    fail_usage("pool = \"{}\": {} has a way of its own; leave the key out, or say \"model\"", name,
               model.architecture);
  vit->pool = named->second;
}

ModelSpec model_for(const Recipe& recipe, const Dataset& data) {
  ModelSpec model = starting_model(recipe);
  if (recipe.image_size) set_image_size(model, *recipe.image_size, *recipe.image_size);
  if (recipe.patch_size) set_patch_size(model, *recipe.patch_size);
  if (recipe.pool) set_pool(model, *recipe.pool);
  if (recipe.dropout) set_dropout(model, *recipe.dropout);
  if (recipe.drop_path) model.config.set_drop_path(static_cast<float>(*recipe.drop_path));
  if (recipe.patch_drop) set_patch_drop(model, *recipe.patch_drop);
  set_preprocessing(model, recipe);
  set_head(model, recipe, data);
  model.lora = lora_of(recipe);
  model.held_out = {};  // the weights' run is another one
  validate(model.config);
  if (recipe.task == Task::kMae) mae_for(recipe, model);
  return model;
}

Augment augment_for(const Recipe& recipe, const ModelSpec& model) {
  const AugmentParts parts =
      parse_augment(recipe.augment.value_or(recipe.crop_padding ? "crop" : "none"));
  Augment a{.resized_crop = parts.resized_crop,
            .flip = parts.flip,
            .alternates = parts.alternates,
            .policies = parts.policies};
  // 4 of 32 pixels, as everybody pads CIFAR.
  const int64_t usual = parts.crop ? model.config.image_h() / 8 : 0;
  if (parts.crop || (parts.flip && !parts.resized_crop))
    a.crop_padding = static_cast<int>(recipe.crop_padding.value_or(usual));
  if ((recipe.scale || recipe.ratio) && !a.resized_crop)
    fail_usage("{} is for augment = \"resized-crop\", which is not asked for",
               recipe.scale ? "scale" : "ratio");
  if (recipe.scale) a.scale = pair_of(*recipe.scale, "scale");
  if (recipe.ratio) a.ratio = pair_of(*recipe.ratio, "ratio");
  const std::string filter = recipe.train_interpolation.value_or(model.preprocess.interpolation);
  a.random_filter = filter == "random";
  if (!a.random_filter) a.filter = parse_filter(filter);
  a.jitter = jitter_of(recipe.color_jitter);
  a.erase.probability = recipe.erase, a.erase.mode = recipe.erase_mode;
  if (recipe.erase_area) a.erase.area = pair_of(*recipe.erase_area, "erase_area");
  for (size_t c = 0; c < 3; ++c) {  // as the model sees zero, or medium grey where it does not say
    const std::vector<float>&mean = model.preprocess.mean, &deviation = model.preprocess.std;
    if (!mean.empty()) a.erase.mean[c] = static_cast<double>(mean[c % mean.size()]);
    if (!deviation.empty()) a.erase.std[c] = static_cast<double>(deviation[c % deviation.size()]);
    a.fill[c] =
        static_cast<uint8_t>(std::clamp(std::nearbyint(255.0 * a.erase.mean[c]), 0.0, 255.0));
  }
  return a;
}

MixConfig mix_for(const Recipe& recipe) {
  return {.mixup = recipe.mixup,
          .cutmix = recipe.cutmix,
          .probability = recipe.mix_prob,
          .switch_probability = recipe.mix_switch_prob};
}

int64_t strong_epochs(const Recipe& recipe, int64_t epochs) {
  return epochs - std::llround(recipe.augment_off * static_cast<double>(epochs));
}

DType compute_for(const Recipe& recipe) {
  return recipe.precision == Precision::kBF16 ? DType::kBF16 : DType::kF32;
}

}  // namespace vitrum
