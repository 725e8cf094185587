#include "vitrum/train/recipe.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using test::usage_error;
using testing::AllOf;
using testing::HasSubstr;

Recipe parse(const std::string& toml) {
  const TempDir dir;
  write_file_atomic(dir / "r.toml", toml);
  Recipe recipe;
  load_recipe(recipe, dir / "r.toml");
  return recipe;
}

std::string file_error(const std::string& toml) {
  return usage_error([&] { parse(toml); });
}
std::string set_error(const std::string& assignment) {
  Recipe recipe;
  return usage_error([&] { set_assignment(recipe, assignment); });
}

// Every key, with another value than its default.
Recipe everything() {
  return parse(R"(
    model = "vit \"quoted\" \\ name"
    data = "mnist:/data/möbel"
    weights = "some/dir"
    num_classes = 100
    image_size = 32
    head_bias = false
    head_init = "zero"
    pos_resample = "bilinear"
    zero_init = ["*.bn2.weight"]
    dropout = 0.1
    drop_path = 0.2
    patch_drop = 0.5
    epochs = 15
    max_steps = 1000
    batch_size = 64
    accumulate = 4
    eval_batch_size = 256
    holdout = 0.02
    subset = 500
    patience = 5
    seed = 123456789012345
    optimizer = "sgd"
    lr = 3e-4
    weight_decay = 1e-4
    momentum = 0.95
    betas = [0.85, 0.98]
    eps = 1e-7
    nesterov = true
    adamw_lr = 1e-4
    muon_scale = "match_rms_adamw"
    sam = 0.05
    no_decay = false
    clip_norm = 1
    freeze = ["blocks.*", "pos_embed"]
    head_only = true
    lr_scale = {"head.*" = 100, "*.bias" = 0.5}
    layer_decay = 0.75
    lr_scan = [0.001, 0.003]
    lr_scan_epochs = 2
    label_smoothing = 0.1
    ema = 0.9999
    schedule = "linear"
    schedule_unit = "epoch"
    warmup_epochs = 2.5
    warmup_steps = 7
    min_lr = 1e-6
    augment = "crop-flip"
    crop_padding = 4
    mean = [0.4914, 0.4822, 0.4465]
    std = [0.247, 0.2435, 0.2616]
    resize = "center"
    crop_pct = 0.9
    interpolation = "bicubic"
    precision = "bf16"
    recompute = "block"
    checkpoint_every = 500
    save_every = 3
    eval_every = 2
    eval_tta = "flip"
    workers = 3
    lora = 8
    lora_alpha = 16
    lora_targets = ["qkv", "mlp.fc1"]
    lora_dropout = 0.1
    task = "mae"
    patch_size = 8
    pool = "mean"
    slices = 2
    on_bad_image = "skip"
    loss = "bce"
    teacher = "some/teacher"
    teacher_arch = "vit_base_patch16_224"
    teacher_logits = "answers.safetensors"
    distillation = "soft"
    alpha = 0.25
    tau = 3
    scale = [0.2, 1]
    ratio = [0.5, 2]
    train_interpolation = "random"
    color_jitter = [0.4, 0.3, 0.2]
    erase = 0.25
    erase_mode = "const"
    erase_area = [0.02, 0.2]
    repeat = 3
    mixup = 0.8
    cutmix = 1
    mix_prob = 0.9
    mix_switch_prob = 0.4
    augment_off = 0.1
    data_on_device = "off"
    mask_ratio = 0.6
    norm_pix = false
    decoder_width = 64
    decoder_depth = 2
    decoder_heads = 4
  )");
}

TEST(Recipe, ReadsEveryKey) {
  const Recipe r = everything();
  EXPECT_EQ(r.model, "vit \"quoted\" \\ name");
  EXPECT_EQ(r.num_classes, 100);
  EXPECT_EQ(r.head_bias, false);
  EXPECT_EQ(r.seed, 123456789012345);
  EXPECT_EQ(r.optimizer, OptimizerKind::kSgd);
  EXPECT_EQ(r.lr, 3e-4);
  EXPECT_EQ(r.betas, (std::vector<double>{0.85, 0.98}));
  EXPECT_EQ(r.clip_norm, 1);
  EXPECT_EQ(r.schedule, ScheduleKind::kLinear);
  EXPECT_EQ(r.schedule_unit, ScheduleUnit::kEpoch);
  EXPECT_EQ(r.augment, "crop-flip");
  EXPECT_EQ(r.resize, ResizeMode::kCenter);
  EXPECT_EQ(r.precision, Precision::kBF16);
  EXPECT_EQ(r.recompute, Recompute::kBlock);
  EXPECT_EQ(r.workers, 3);
  EXPECT_EQ(r.weights, "some/dir");
  EXPECT_EQ(r.freeze, (std::vector<std::string>{"blocks.*", "pos_embed"}));
  EXPECT_EQ(r.lr_scale, (std::vector<LrScale>{{"*.bias", 0.5}, {"head.*", 100}}));
  EXPECT_EQ(r.lr_scan, (std::vector<double>{0.001, 0.003}));
  EXPECT_EQ(changed_keys(Recipe(), r), recipe_keys())
      << "a key is missing from everything(), or one is not read";
}

TEST(Recipe, WrittenAndReadBackIsTheSame) {
  EXPECT_EQ(parse(to_toml(everything())), everything());
  EXPECT_EQ(parse(to_toml(Recipe())), Recipe());
  Recipe odd;
  odd.lr = 0.1 + 0.2, odd.eps = 1e-30, odd.mean.emplace(), odd.std.emplace();
  EXPECT_EQ(parse(to_toml(odd)), odd);
}

TEST(Recipe, EmptyMeanIsNotAMissingOne) {
  EXPECT_FALSE(parse("").mean.has_value());
  ASSERT_TRUE(parse("mean = []").mean.has_value());
  EXPECT_TRUE(parse("mean = []").mean->empty());
}

TEST(Recipe, SetTakesPlainWordsAndToml) {
  Recipe r;
  for (const char* assignment :
       {"optimizer=adam", "lr = 0.5", "betas=[0.5, 0.6]", "no_decay=false",
        "data=mnist:some dir/with=equals", "model=\"vit_mnist\"", "max_steps=20"})
    set_assignment(r, assignment);
  EXPECT_EQ(r.optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(r.lr, 0.5);
  EXPECT_EQ(r.betas->at(1), 0.6);
  EXPECT_FALSE(r.no_decay);
  EXPECT_EQ(r.data, "mnist:some dir/with=equals");
  EXPECT_EQ(r.model, "vit_mnist");
  EXPECT_EQ(r.max_steps, 20);
}

TEST(Recipe, PatternsAreTextOrLists) {
  Recipe r;
  set_assignment(r, "freeze=blocks.*");
  EXPECT_EQ(r.freeze, std::vector<std::string>{"blocks.*"});
  set_assignment(r, "freeze=[\"a\", \"b\"]");
  EXPECT_EQ(r.freeze, (std::vector<std::string>{"a", "b"}));
  set_assignment(r, "freeze=blocks.[0-8], pos_embed");
  EXPECT_EQ(r.freeze, (std::vector<std::string>{"blocks.[0-8]", "pos_embed"}));
  set_assignment(r, "lr_scale=head.*=100,norm=0.5");
  EXPECT_EQ(r.lr_scale, (std::vector<LrScale>{{"head.*", 100}, {"norm", 0.5}}));
  set_assignment(r, "lr_scan=0.1, 0.03");
  EXPECT_EQ(r.lr_scan, (std::vector<double>{0.1, 0.03}));
  EXPECT_EQ(parse("lr_scale = [\"a=1e-2\", \"b=3\"]").lr_scale,
            (std::vector<LrScale>{{"a", 0.01}, {"b", 3}}));
  EXPECT_EQ(parse("[lr_scale]\nhead = 2").lr_scale, (std::vector<LrScale>{{"head", 2}}));
  EXPECT_THAT(set_error("lr_scale=head"),
              AllOf(HasSubstr("lr_scale = \"head\""), HasSubstr("expected PATTERN=X")));
  EXPECT_THAT(set_error("lr_scale=head=-1"), HasSubstr("PATTERN=X"));
  EXPECT_THAT(file_error("lr_scale = 3"), HasSubstr("PATTERN=X"));
  EXPECT_THAT(file_error("lr_scale = {head = \"x\"}"), HasSubstr("a number"));
  EXPECT_THAT(file_error("freeze = [1]"), HasSubstr("text in quotes"));
  EXPECT_THAT(set_error("lr_scan=0.1,x"), HasSubstr("lr_scan = \"0.1,x\": expected numbers"));
  EXPECT_THAT(set_error("lr_scan=[0.1, 0]"), HasSubstr("lr_scan = 0"));
  EXPECT_THAT(set_error("layer_decay=1.5"), HasSubstr("from 1e-06 to 1"));
}

TEST(Recipe, MistakesNameFileLineKeyAndNearest) {
  EXPECT_THAT(file_error("model = \"x\"\n\nbatch_sise = 3"),
              AllOf(HasSubstr("r.toml:3:"), HasSubstr("'batch_sise'"),
                    HasSubstr("did you mean 'batch_size'")));
  EXPECT_THAT(file_error("lr = \"fast\""),
              AllOf(HasSubstr("r.toml:1: lr = \"fast\""), HasSubstr("a number")));
  EXPECT_THAT(file_error("optimizer = \"adamv\""),
              AllOf(HasSubstr("one of sgd, adam, adamw, lion, lamb, muon"),
                    HasSubstr("did you mean 'adam")));
  EXPECT_THAT(file_error("epochs = 1.5"), HasSubstr("whole number"));
  EXPECT_THAT(file_error("epochs = 0"), HasSubstr("at least 1"));
  EXPECT_THAT(file_error("dropout = 1.0"), HasSubstr("dropout"));
  EXPECT_THAT(file_error("patch_drop = 1"), HasSubstr("patch_drop"));
  EXPECT_THAT(set_error("patch_drop=-0.1"), HasSubstr("patch_drop"));
  EXPECT_THAT(file_error("lr = nan"), HasSubstr("lr"));
  EXPECT_THAT(file_error("lr = -1"), HasSubstr("lr = -1"));
  EXPECT_THAT(file_error("betas = \"x\""), HasSubstr("brackets"));
  EXPECT_THAT(file_error("mean = [0.5, \"x\"]"), HasSubstr("mean"));
  EXPECT_THAT(file_error("[train]\nlr = 1"), HasSubstr("unknown key 'train'"));
  EXPECT_THAT(file_error("model = \n"), HasSubstr("r.toml:1:"));
  EXPECT_THAT(file_error("mixup = -1"), HasSubstr("from 0 to 100"));
  EXPECT_THAT(set_error("epoch=3"), AllOf(HasSubstr("--set"), HasSubstr("did you mean 'epochs'")));
  EXPECT_THAT(set_error("epochs"), HasSubstr("key=value"));
  EXPECT_THAT(set_error("lr=1 2"), HasSubstr("a number"));
  EXPECT_THAT(set_error("lr=1\nepochs=2"), HasSubstr("a number"));
  EXPECT_THAT(set_error("epochs=2000000000"), HasSubstr("from 1 to 1000000000"));
}

// Each would end the process: tables are built, and destroyed, by recursion.
TEST(Recipe, DeepNestsAreRefused) {
  std::string dotted = "a", open, close;
  for (int i = 0; i < 40'000; ++i) dotted += ".a", open += '[', close += ']';
  for (const std::string& toml : {dotted + " = 1", "[" + dotted + "]\nb = 1", "[[" + dotted + "]]",
                                  "lr = " + open + close, "lr_scale = {" + dotted + " = 1}"})
    EXPECT_THAT(file_error(toml), HasSubstr("nests deeper than 32 levels")) << toml.substr(0, 20);
  EXPECT_THAT(set_error("lr=" + open + close), HasSubstr("nests deeper than 32 levels"));
  EXPECT_THAT(set_error("lr_scale={" + dotted + " = 1}"), HasSubstr("nests deeper"));
  EXPECT_LT(set_error(std::string(500'000, 'k') + "=1").size(), 300u);
  EXPECT_LT(set_error("optimizer=" + std::string(500'000, 'k')).size(), 500u);
  EXPECT_LT(file_error(std::string(500'000, 'k') + " = 1").size(), 500u);
}

TEST(Recipe, MessagesAreOneLine) {
  for (const char* toml :
       {"model = \"a\nb\"", "lr = [1,\n2]", "x = {a = 1}", "lr = \"\"\"a\nb\"\"\""})
    EXPECT_EQ(file_error(toml).find('\n'), std::string::npos) << toml;
}

TEST(Recipe, WhatDoesNotFitTogether) {
  const auto check = [](const std::string& toml) {
    const Recipe recipe = parse("model = \"m\"\ndata = \"d\"\n" + toml);
    return usage_error([&] { check_recipe(recipe); });
  };
  EXPECT_THAT(check("betas = [0.9]"), HasSubstr("betas"));
  EXPECT_THAT(check("mean = [0.5]\nstd = [0.5, 0.5]"), HasSubstr("std"));
  EXPECT_THAT(check("lr = 0.1\nmin_lr = 0.2"), HasSubstr("min_lr"));
  EXPECT_THAT(check("adamw_lr = 0.1"), HasSubstr("muon"));
  EXPECT_THAT(check("weights = \"w\"\nzero_init = [\"*.bn2.weight\"]"), HasSubstr("from scratch"));
  EXPECT_THAT(check("optimizer = \"muon\"\nlr = 0\nadamw_lr = 0.1"), HasSubstr("adamw_lr"));
  EXPECT_THAT(check("optimizer = \"sgd\"\nnesterov = true\nmomentum = 0"), HasSubstr("momentum"));
  EXPECT_THAT(check("lora = 4\nlora_targets = []"), HasSubstr("lora_targets"));
  EXPECT_THAT(check("distillation = \"soft\""), HasSubstr("distillation is given and no teacher"));
  EXPECT_THAT(check("tau = 2"), HasSubstr("tau is given and no teacher"));
  EXPECT_NO_THROW(check_recipe(parse("model = \"m\"\ndata = \"d\"\ntau = 2\nteacher = \"\"")));
  EXPECT_THAT(usage_error([] { check_recipe(Recipe()); }), HasSubstr("--model"));
}

TEST(Recipe, DecayDependsOnTheOptimizer) {
  EXPECT_EQ(parse("").decay(), 0.05);
  EXPECT_EQ(parse("optimizer = \"adam\"").decay(), 0);
  EXPECT_EQ(parse("optimizer = \"adam\"\nweight_decay = 0.1").decay(), 0.1);
  EXPECT_EQ(parse("optimizer = \"lamb\"").hyper().clip_norm, 1);
  EXPECT_EQ(parse("optimizer = \"lamb\"\nclip_norm = 0").hyper().clip_norm, 0);
  EXPECT_EQ(parse("optimizer = \"lion\"").hyper().beta2, 0.99);
  EXPECT_EQ(parse("optimizer = \"muon\"").hyper().momentum, 0.95);
  EXPECT_TRUE(parse("optimizer = \"muon\"").hyper().nesterov);
  EXPECT_FALSE(parse("optimizer = \"sgd\"").hyper().nesterov);
}

TEST(Recipe, ScheduleCountsStepsAndEpochs) {
  const Schedule s =
      schedule_of(parse("epochs = 4\nwarmup_epochs = 0.5\nwarmup_steps = 3\nmax_steps = 30"), 10);
  EXPECT_EQ(s.total_steps, 30);
  EXPECT_EQ(s.warmup_steps, 8);
  EXPECT_EQ(schedule_of(parse("epochs = 2\nmax_steps = 30"), 10).total_steps, 20);
}

TEST(Recipe, ShippedRecipesAreValid) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(VITRUM_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    Recipe recipe;
    EXPECT_NO_THROW(load_recipe(recipe, entry.path())) << entry.path();
    EXPECT_NO_THROW(check_recipe(recipe)) << entry.path();
    ++found;
  }
  EXPECT_GE(found, 3);
}

}  // namespace
}  // namespace vitrum
