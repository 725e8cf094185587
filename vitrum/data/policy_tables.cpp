#include "vitrum/data/policy_tables.h"

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"

namespace vitrum {
namespace {

using enum PolicyOp;

constexpr PolicyOp kRand[] = {kAutoContrast, kEqualize,    kInvert, kRotate,     kPosterize,
                              kSolarize,     kSolarizeAdd, kColor,  kContrast,   kBrightness,
                              kSharpness,    kShearX,      kShearY, kTranslateX, kTranslateY};
constexpr PolicyOp kRandIncreasing[] = {kAutoContrast,
                                        kEqualize,
                                        kInvert,
                                        kRotate,
                                        kPosterizeIncreasing,
                                        kSolarizeIncreasing,
                                        kSolarizeAdd,
                                        kColorIncreasing,
                                        kContrastIncreasing,
                                        kBrightnessIncreasing,
                                        kSharpnessIncreasing,
                                        kShearX,
                                        kShearY,
                                        kTranslateX,
                                        kTranslateY};

constexpr WeightedOp kWeights[] = {{kRotate, 3},
                                   {kShearX, 2},
                                   {kShearY, 2},
                                   {kTranslateX, 1},
                                   {kTranslateY, 1},
                                   {kColorIncreasing, 0.25},
                                   {kSharpnessIncreasing, 0.25},
                                   {kAutoContrast, 0.25},
                                   {kSolarizeIncreasing, 0.05},
                                   {kSolarizeAdd, 0.05},
                                   {kContrastIncreasing, 0.05},
                                   {kBrightnessIncreasing, 0.05},
                                   {kEqualize, 0.05},
                                   {kPosterizeIncreasing, 0.05},
                                   {kInvert, 0.05}};
constexpr WeightedOp kThreeWeighted[] = {{kSolarizeIncreasing, 6},
                                         {kDesaturate, 6},
                                         {kBlur, 6},
                                         {kRotate, 3},
                                         {kShearX, 2},
                                         {kShearY, 2},
                                         {kPosterizeIncreasing, 1},
                                         {kAutoContrast, 1},
                                         {kColorIncreasing, 1},
                                         {kSharpnessIncreasing, 1},
                                         {kContrastIncreasing, 1},
                                         {kBrightnessIncreasing, 1},
                                         {kEqualize, 1},
                                         {kInvert, 1}};
constexpr WeightedOp kThree[] = {{kSolarizeIncreasing, 1}, {kDesaturate, 1}, {kBlur, 1}};

// Two operations, each with its probability in tenths and its level.
struct Pair {
  PolicyOp first;
  int first_tenths, first_level;
  PolicyOp second;
  int second_tenths, second_level;
};

// ImageNet's of the AutoAugment paper; torchvision's "imagenet" is the same with bins for levels.
constexpr Pair kOriginal[] = {{kPosterizeOriginal, 4, 8, kRotate, 6, 9},
                              {kSolarize, 6, 5, kAutoContrast, 6, 5},
                              {kEqualize, 8, 8, kEqualize, 6, 3},
                              {kPosterizeOriginal, 6, 7, kPosterizeOriginal, 6, 6},
                              {kEqualize, 4, 7, kSolarize, 2, 4},
                              {kEqualize, 4, 4, kRotate, 8, 8},
                              {kSolarize, 6, 3, kEqualize, 6, 7},
                              {kPosterizeOriginal, 8, 5, kEqualize, 10, 2},
                              {kRotate, 2, 3, kSolarize, 6, 8},
                              {kEqualize, 6, 8, kPosterizeOriginal, 4, 6},
                              {kRotate, 8, 8, kColor, 4, 0},
                              {kRotate, 4, 9, kEqualize, 6, 2},
                              {kEqualize, 0, 7, kEqualize, 8, 8},
                              {kInvert, 6, 4, kEqualize, 10, 8},
                              {kColor, 6, 4, kContrast, 10, 8},
                              {kRotate, 8, 8, kColor, 10, 2},
                              {kColor, 8, 8, kSolarize, 8, 7},
                              {kSharpness, 4, 7, kInvert, 6, 8},
                              {kShearX, 6, 5, kEqualize, 10, 9},
                              {kColor, 4, 0, kEqualize, 6, 3},
                              {kEqualize, 4, 7, kSolarize, 2, 4},
                              {kSolarize, 6, 5, kAutoContrast, 6, 5},
                              {kInvert, 6, 4, kEqualize, 10, 8},
                              {kColor, 6, 4, kContrast, 10, 8},
                              {kEqualize, 8, 8, kEqualize, 6, 3}};

// ImageNet's of the EfficientNet code.
constexpr Pair kV0[] = {{kEqualize, 8, 1, kShearY, 8, 4},
                        {kColor, 4, 9, kEqualize, 6, 3},
                        {kColor, 4, 1, kRotate, 6, 8},
                        {kSolarize, 8, 3, kEqualize, 4, 7},
                        {kSolarize, 4, 2, kSolarize, 6, 2},
                        {kColor, 2, 0, kEqualize, 8, 8},
                        {kEqualize, 4, 8, kSolarizeAdd, 8, 3},
                        {kShearX, 2, 9, kRotate, 6, 8},
                        {kColor, 6, 1, kEqualize, 10, 2},
                        {kInvert, 4, 9, kRotate, 6, 0},
                        {kEqualize, 10, 9, kShearY, 6, 3},
                        {kColor, 4, 7, kEqualize, 6, 0},
                        {kPosterize, 4, 6, kAutoContrast, 4, 7},
                        {kSolarize, 6, 8, kColor, 6, 9},
                        {kSolarize, 2, 4, kRotate, 8, 9},
                        {kRotate, 10, 7, kTranslateY, 8, 9},
                        {kShearX, 0, 0, kSolarize, 8, 4},
                        {kShearY, 8, 0, kColor, 6, 4},
                        {kColor, 10, 0, kRotate, 6, 2},
                        {kEqualize, 8, 4, kEqualize, 0, 8},
                        {kEqualize, 10, 4, kAutoContrast, 6, 2},
                        {kShearY, 4, 7, kSolarizeAdd, 6, 7},
                        {kPosterize, 8, 2, kSolarize, 6, 10},
                        {kSolarize, 6, 8, kEqualize, 6, 1},
                        {kColor, 8, 6, kRotate, 4, 5}};

constexpr Pair kCifar10[] = {
    {kInvert, 1, 0, kContrast, 2, 6},        {kRotate, 7, 2, kTranslateX, 3, 9},
    {kSharpness, 8, 1, kSharpness, 9, 3},    {kShearY, 5, 8, kTranslateY, 7, 9},
    {kAutoContrast, 5, 0, kEqualize, 9, 0},  {kShearY, 2, 7, kPosterize, 3, 7},
    {kColor, 4, 3, kBrightness, 6, 7},       {kSharpness, 3, 9, kBrightness, 7, 9},
    {kEqualize, 6, 0, kEqualize, 5, 0},      {kContrast, 6, 7, kSharpness, 6, 5},
    {kColor, 7, 7, kTranslateX, 5, 8},       {kEqualize, 3, 0, kAutoContrast, 4, 0},
    {kTranslateY, 4, 3, kSharpness, 2, 6},   {kBrightness, 9, 6, kColor, 2, 8},
    {kSolarize, 5, 2, kInvert, 0, 0},        {kEqualize, 2, 0, kAutoContrast, 6, 0},
    {kEqualize, 2, 0, kEqualize, 6, 0},      {kColor, 9, 9, kEqualize, 6, 0},
    {kAutoContrast, 8, 0, kSolarize, 2, 8},  {kBrightness, 1, 3, kColor, 7, 0},
    {kSolarize, 4, 5, kAutoContrast, 9, 0},  {kTranslateY, 9, 9, kTranslateY, 7, 9},
    {kAutoContrast, 9, 0, kSolarize, 8, 3},  {kEqualize, 8, 0, kInvert, 1, 0},
    {kTranslateY, 7, 9, kAutoContrast, 9, 0}};

constexpr Pair kSvhn[] = {
    {kShearX, 9, 4, kInvert, 2, 0},       {kShearY, 9, 8, kInvert, 7, 0},
    {kEqualize, 6, 0, kSolarize, 6, 6},   {kInvert, 9, 0, kEqualize, 6, 0},
    {kEqualize, 6, 0, kRotate, 9, 3},     {kShearX, 9, 4, kAutoContrast, 8, 0},
    {kShearY, 9, 8, kInvert, 4, 0},       {kShearY, 9, 5, kSolarize, 2, 6},
    {kInvert, 9, 0, kAutoContrast, 8, 0}, {kEqualize, 6, 0, kRotate, 9, 3},
    {kShearX, 9, 4, kSolarize, 3, 3},     {kShearY, 8, 8, kInvert, 7, 0},
    {kEqualize, 9, 0, kTranslateY, 6, 6}, {kInvert, 9, 0, kEqualize, 6, 0},
    {kContrast, 3, 3, kRotate, 8, 4},     {kInvert, 8, 0, kTranslateY, 0, 2},
    {kShearY, 7, 6, kSolarize, 4, 8},     {kInvert, 6, 0, kRotate, 8, 4},
    {kShearY, 3, 7, kTranslateX, 9, 3},   {kShearX, 1, 6, kInvert, 6, 0},
    {kSolarize, 7, 2, kTranslateY, 6, 7}, {kShearY, 8, 4, kInvert, 8, 0},
    {kShearX, 7, 9, kTranslateY, 8, 3},   {kShearY, 8, 5, kAutoContrast, 7, 0},
    {kShearX, 7, 2, kInvert, 1, 0}};

struct Table {
  std::string_view name;
  std::span<const Pair> pairs;
  LevelScale scale = LevelScale::kTimm;
  bool research = false;  // posterizes more, not less, at higher levels
};
constexpr Table kTables[] = {{"original", kOriginal},
                             {"originalr", kOriginal, LevelScale::kTimm, true},
                             {"v0", kV0},
                             {"v0r", kV0, LevelScale::kTimm, true},
                             {"imagenet", kOriginal, LevelScale::kTens},
                             {"cifar10", kCifar10, LevelScale::kTens},
                             {"svhn", kSvhn, LevelScale::kTens}};

PolicyOp variant(PolicyOp op, const Table& table) {
  const bool posterizes = op == kPosterize || op == kPosterizeOriginal;
  if (posterizes && table.research) return kPosterizeIncreasing;
  return posterizes && table.scale == LevelScale::kTens ? kPosterize : op;
}

}  // namespace

std::span<const PolicyOp> rand_ops(bool increasing) {
  return increasing ? std::span<const PolicyOp>(kRandIncreasing) : kRand;
}

std::vector<std::string> weighted_names() { return {"weights", "3a", "3aw"}; }

std::span<const WeightedOp> weighted_ops(std::string_view name) {
  if (name == "weights") return kWeights;
  return name == "3a" ? std::span<const WeightedOp>(kThree) : kThreeWeighted;
}

std::vector<std::string> auto_names() {
  std::vector<std::string> names;
  for (const Table& table : kTables) names.emplace_back(table.name);
  return names;
}

Policy auto_policy(std::string_view name) {
  const auto& table = *std::ranges::find(kTables, name, &Table::name);
  Policy policy{.scale = table.scale};
  for (const Pair& p : table.pairs)
    policy.choices.push_back(
        {{variant(p.first, table), p.first_tenths / 10.0, static_cast<double>(p.first_level)},
         {variant(p.second, table), p.second_tenths / 10.0, static_cast<double>(p.second_level)}});
  return policy;
}

// DeiT III: solarised, grey or blurred, then colours jittered.
Policy three_augment() {
  return {.choices = {{{kSolarize, 1, 5}}, {{kDesaturate, 1, 10}}, {{kBlurRand, 1, 10}}},
          .jitter = 0.3};
}

Policy trivial_augment() {
  Policy policy{.scale = LevelScale::kThirty};
  for (const PolicyOp op :
       {kIdentity, kShearX, kShearY, kTranslateX, kTranslateY, kRotate, kBrightness, kColor,
        kContrast, kSharpness, kPosterize, kSolarize, kAutoContrast, kEqualize})
    policy.choices.push_back({{op, 1, -1}});
  return policy;
}

}  // namespace vitrum
