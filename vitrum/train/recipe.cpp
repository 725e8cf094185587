#include "vitrum/train/recipe.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <type_traits>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/join.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/text_limits.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/tta.h"
#include "vitrum/train/other_keys.h"

namespace vitrum {
namespace {

constexpr double kMany = 1e15;  // whole numbers up to here are exact in TOML, in double and in JSON

struct Range {
  double min = 0, max = kMany;
};
constexpr Range kFraction{0, 1};
constexpr Range kBelowOne{0, 1 - 1e-9};
constexpr Range kPositive{1e-30, kMany};
constexpr Range kCount{1, 1e9};

// The one list of keys, in the order of config.toml.
template <class R, class Visit>
void each_key(R& r, Visit&& visit) {
  visit("model", r.model, Range{});
  visit("data", r.data, Range{});
  visit("weights", r.weights, Range{});
  visit("task", r.task, Range{});
  visit("num_classes", r.num_classes, kCount);
  visit("image_size", r.image_size, Range{1, 1 << 16});
  visit("patch_size", r.patch_size, Range{1, 1 << 10});
  visit("pool", r.pool, Range{});
  visit("head_bias", r.head_bias, Range{});
  visit("head_init", r.head_init, Range{});
  visit("pos_resample", r.pos_resample, Range{});
  visit("zero_init", r.zero_init, Range{});
  visit("dropout", r.dropout, kBelowOne);
  visit("drop_path", r.drop_path, kBelowOne);
  visit("patch_drop", r.patch_drop, kBelowOne);
  visit("epochs", r.epochs, kCount);
  visit("max_steps", r.max_steps, Range{});
  visit("batch_size", r.batch_size, Range{1, 1 << 20});
  visit("accumulate", r.accumulate, Range{1, 1 << 20});
  visit("slices", r.slices, Range{1, 1 << 11});
  visit("eval_batch_size", r.eval_batch_size, Range{1, 1 << 20});
  visit("holdout", r.holdout, kBelowOne);
  visit("subset", r.subset, Range{});
  visit("on_bad_image", r.on_bad_image, Range{});
  visit("patience", r.patience, Range{});
  visit("seed", r.seed, Range{});
  visit("optimizer", r.optimizer, Range{});
  visit("lr", r.lr, Range{0, 1e6});
  visit("weight_decay", r.weight_decay, Range{0, 1e6});
  visit("momentum", r.momentum, kBelowOne);
  visit("betas", r.betas, kBelowOne);
  visit("eps", r.eps, kPositive);
  visit("nesterov", r.nesterov, Range{});
  visit("adamw_lr", r.adamw_lr, Range{0, 1e6});
  visit("muon_scale", r.muon_scale, Range{});
  visit("sam", r.sam, Range{0, 1e6});
  visit("no_decay", r.no_decay, Range{});
  visit("clip_norm", r.clip_norm, Range{});
  visit("freeze", r.freeze, Range{});
  visit("head_only", r.head_only, Range{});
  visit("lr_scale", r.lr_scale, Range{0, 1e6});
  visit("layer_decay", r.layer_decay, Range{1e-6, 1});
  visit("lr_scan", r.lr_scan, Range{1e-30, 1e6});
  visit("lr_scan_epochs", r.lr_scan_epochs, kCount);
  visit("label_smoothing", r.label_smoothing, kBelowOne);
  visit("ema", r.ema, kBelowOne);
  visit("loss", r.loss, Range{});
  visit("teacher", r.teacher, Range{});
  visit("teacher_arch", r.teacher_arch, Range{});
  visit("teacher_logits", r.teacher_logits, Range{});
  visit("distillation", r.distillation, Range{});
  visit("alpha", r.alpha, kFraction);
  visit("tau", r.tau, Range{1e-3, 1e3});
  visit("schedule", r.schedule, Range{});
  visit("schedule_unit", r.schedule_unit, Range{});
  visit("warmup_epochs", r.warmup_epochs, Range{0, 1e9});
  visit("warmup_steps", r.warmup_steps, Range{});
  visit("min_lr", r.min_lr, Range{0, 1e6});
  visit("augment", r.augment, Range{});
  visit("crop_padding", r.crop_padding, Range{0, 1 << 12});
  visit("scale", r.scale, Range{1e-6, 1});
  visit("ratio", r.ratio, Range{1e-3, 1e3});
  visit("train_interpolation", r.train_interpolation, Range{});
  visit("color_jitter", r.color_jitter, kFraction);
  visit("erase", r.erase, kFraction);
  visit("erase_mode", r.erase_mode, Range{});
  visit("erase_area", r.erase_area, kFraction);
  visit("repeat", r.repeat, Range{1, 100});
  visit("mixup", r.mixup, Range{0, 100});
  visit("cutmix", r.cutmix, Range{0, 100});
  visit("mix_prob", r.mix_prob, kFraction);
  visit("mix_switch_prob", r.mix_switch_prob, kFraction);
  visit("augment_off", r.augment_off, kFraction);
  visit("mean", r.mean, kFraction);
  visit("std", r.std, Range{1e-6, 1e6});
  visit("resize", r.resize, Range{});
  visit("crop_pct", r.crop_pct, Range{0.1, 1});
  visit("interpolation", r.interpolation, Range{});
  visit("precision", r.precision, Range{});
  visit("recompute", r.recompute, Range{});
  visit("checkpoint_every", r.checkpoint_every, Range{});
  visit("save_every", r.save_every, kCount);
  visit("eval_every", r.eval_every, kCount);
  visit("eval_tta", r.eval_tta, Range{});
  visit("workers", r.workers, Range{0, 1024});
  visit("data_on_device", r.data_on_device, Range{});
  visit("lora", r.lora, Range{0, 1 << 16});
  visit("lora_alpha", r.lora_alpha, kPositive);
  visit("lora_targets", r.lora_targets, Range{});
  visit("lora_dropout", r.lora_dropout, kBelowOne);
  visit("mask_ratio", r.mask_ratio, Range{0.01, 0.99});
  visit("norm_pix", r.norm_pix, Range{});
  visit("decoder_width", r.decoder_width, Range{4, 1 << 14});
  visit("decoder_depth", r.decoder_depth, Range{0, 256});
  visit("decoder_heads", r.decoder_heads, Range{1, 1 << 12});
}

const Recipe kDefault;

// The spellings of an enumeration, in its order.
std::vector<std::string> names(OptimizerKind) {
  return {"sgd", "adam", "adamw", "lion", "lamb", "muon"};
}
std::vector<std::string> names(MuonScale) { return {"original", "match_rms_adamw"}; }
std::vector<std::string> names(ScheduleKind) { return {"constant", "cosine", "linear"}; }
std::vector<std::string> names(ScheduleUnit) { return {"step", "epoch"}; }
std::vector<std::string> names(Precision) { return {"auto", "f32", "bf16"}; }
std::vector<std::string> names(OnDevice) { return {"auto", "on", "off"}; }
std::vector<std::string> names(Recompute) { return {"none", "cheap", "block"}; }
std::vector<std::string> names(EraseMode) { return {"const", "rand", "pixel"}; }
std::vector<std::string> names(OnBadImage) { return {"stop", "skip"}; }
std::vector<std::string> names(ResizeMode) { return {"squash", "center"}; }
std::vector<std::string> names(HeadInit) { return {"keep", "zero", "normal"}; }
std::vector<std::string> names(PosResample) { return {"auto", "bilinear", "bicubic"}; }
std::vector<std::string> names(Tta) { return {"none", "flip"}; }
std::vector<std::string> names(Task) { return {"classify", "mae"}; }
std::vector<std::string> names(TaskLoss) { return {"cross_entropy", "bce"}; }
std::vector<std::string> names(Distillation) { return {"hard", "soft"}; }

// ---- reading: one read() per type of member ----
struct Source {
  std::string place;  // "file:line" or the option
  std::string_view key;
  const toml::node& node;
  Range range;

  [[noreturn]] void expected(const std::string& what) const {
    fail_usage("{}: {} = {}: expected {}", place, key, spelled(), what);
  }
  std::string spelled() const {
    if (const auto* text = node.as_string()) return json_string(shown(text->get()));
    if (node.is_table()) return "{...}";
    if (node.is_array()) return "[...]";
    std::ostringstream text;
    node.visit([&](const auto& n) { text << n; });
    return text.str();
  }
  std::string numbers(const char* kind) const {
    const auto* whole = node.as_integer();
    const double n = whole ? static_cast<double>(whole->get()) : node.value<double>().value_or(0);
    const bool too_large = node.is_number() && n > range.max;
    if (range.max >= 1e9 && !too_large) return fmt::format("{} of at least {}", kind, range.min);
    return fmt::format("{} from {} to {:.10g}", kind, range.min, range.max);
  }
};

template <class T>
void read(std::optional<T>& to, const Source& from);

void read(std::string& to, const Source& from) {
  const auto* text = from.node.as_string();
  if (!text) from.expected("text in quotes");
  to = text->get();
}
void read(bool& to, const Source& from) {
  const auto* yes = from.node.as_boolean();
  if (!yes) from.expected("true or false");
  to = yes->get();
}
void read(int64_t& to, const Source& from) {
  const auto* n = from.node.as_integer();
  if (!n || static_cast<double>(n->get()) < from.range.min ||
      static_cast<double>(n->get()) > from.range.max)
    from.expected(from.numbers("a whole number"));
  to = n->get();
}
void read(double& to, const Source& from) {
  const auto x = from.node.is_number() ? from.node.value<double>() : std::nullopt;
  if (!x || !(*x >= from.range.min && *x <= from.range.max))
    from.expected(from.numbers("a number"));
  to = *x;
}
// One may stand without brackets.
void read(std::vector<std::string>& to, const Source& from) {
  to.clear();
  if (from.node.is_string()) return read(to.emplace_back(), from);
  const auto* array = from.node.as_array();
  if (!array) from.expected("a pattern in quotes, or several in brackets");
  for (const toml::node& item : *array)
    read(to.emplace_back(), {from.place, from.key, item, from.range});
}
std::optional<LrScale> parse_scale(const std::string& entry) {  // "PATTERN=X"
  const size_t equals = entry.rfind('=');
  if (equals == entry.npos || equals == 0) return {};
  LrScale scale{entry.substr(0, equals)};
  const char* end = entry.data() + entry.size();
  const auto [stop, error] = std::from_chars(entry.data() + equals + 1, end, scale.factor);
  if (error != std::errc() || stop != end) return {};
  return scale;
}
// One such text, several in brackets, or a table of patterns and factors.
void read(std::vector<LrScale>& to, const Source& from) {
  to.clear();
  if (const auto* table = from.node.as_table()) {
    for (const auto& [pattern, factor] : *table) {
      to.push_back({std::string(pattern.str())});
      read(to.back().factor, {from.place, from.key, factor, from.range});
    }
    return;
  }
  if (!from.node.is_string() && !from.node.is_array())
    from.expected("\"PATTERN=X\", several of them in brackets, or a table");
  std::vector<std::string> entries;
  read(entries, from);
  for (const std::string& entry : entries) {
    const auto scale = parse_scale(entry);
    if (!scale || !(scale->factor >= from.range.min && scale->factor <= from.range.max))
      fail_usage("{}: {} = {}: expected PATTERN=X, X being {}", from.place, from.key,
                 json_string(shown(entry)), from.numbers("a number"));
    to.push_back(*scale);
  }
}
void read(std::vector<double>& to, const Source& from) {
  const auto* array = from.node.as_array();
  to.clear();
  if (from.node.is_number()) return read(to.emplace_back(), from);  // a list of one
  if (!array) from.expected("numbers in brackets, as [0.1, 0.2]");
  for (const toml::node& item : *array)
    read(to.emplace_back(), {from.place, from.key, item, from.range});
}
template <class T>
requires std::is_enum_v<T>
void read(T& to, const Source& from) {
  const auto all = names(T{});
  const auto* text = from.node.as_string();
  const auto it = text ? std::find(all.begin(), all.end(), text->get()) : all.end();
  if (it == all.end())
    from.expected(fmt::format("one of {}{}", join(all, ", "),
                              text ? did_you_mean(text->get(), all) : std::string()));
  to = static_cast<T>(it - all.begin());
}
template <class T>
void read(std::optional<T>& to, const Source& from) {
  read(to.emplace(), from);
}

// ---- writing ----
std::string literal(const std::string& text) { return json_string(text); }
std::string literal(bool x) { return x ? "true" : "false"; }
std::string literal(int64_t n) { return std::to_string(n); }
std::string literal(double x) { return fmt::format("{}", x); }
std::string literal(const std::vector<double>& x) { return fmt::format("[{}]", join(x, ", ")); }
std::string literal(const std::vector<std::string>& x) {
  std::vector<std::string> quoted;
  for (const std::string& text : x) quoted.push_back(json_string(text));
  return fmt::format("[{}]", join(quoted, ", "));
}
std::string literal(const std::vector<LrScale>& x) {
  std::vector<std::string> entries;
  for (const LrScale& s : x) entries.push_back(fmt::format("{}={}", s.pattern, s.factor));
  return literal(entries);
}
template <class T>
requires std::is_enum_v<T> std::string literal(T x) {
  return json_string(names(x)[static_cast<size_t>(x)]);
}
template <class T>
std::string literal(const std::optional<T>& x) {
  return x ? literal(*x) : "";
}

[[noreturn]] void fail_unknown(const std::string& place, const std::string& key) {
  fail_usage("{}: unknown key '{}'{}", place, shown(key),
             did_you_mean(key, recipe_keys(), other_keys()));
}

// How --set and options may spell a key's value without TOML's quotes and brackets.
enum class Plain : uint8_t { kToml, kText, kTexts, kNumbers };
template <class T>
constexpr Plain kPlain = std::is_enum_v<T> ? Plain::kText : Plain::kToml;
template <>
constexpr Plain kPlain<std::string> = Plain::kText;
template <>
constexpr Plain kPlain<std::vector<std::string>> = Plain::kTexts;
template <>
constexpr Plain kPlain<std::vector<LrScale>> = Plain::kTexts;
template <>
constexpr Plain kPlain<std::vector<double>> = Plain::kNumbers;
template <class T>
constexpr Plain kPlain<std::optional<T>> = kPlain<T>;

void read_key(Recipe& recipe, const std::string& key, const toml::node& node,
              const std::string& place) {
  bool found = false;
  each_key(recipe, [&](std::string_view name, auto& member, Range range) {
    if (name != key) return;
    found = true;
    read(member, {place, name, node, range});
  });
  if (!found) fail_unknown(place, key);
}

Plain plain_form(const std::string& key) {
  Plain form = Plain::kToml;
  each_key(kDefault, [&](std::string_view name, const auto& member, Range) {
    if (name == key) form = kPlain<std::remove_cvref_t<decltype(member)>>;
  });
  return form;
}

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == text.npos ? "" : std::string(text.substr(first, last - first + 1));
}

toml::array comma_separated(const std::string& text) {
  toml::array items;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    items.push_back(trimmed(std::string_view(text).substr(at, comma - at)));
    at = comma + 1;
  }
  return items;
}

// What a line of TOML should have been whose text has no quotes; "" where that is not its mistake.
std::string with_quotes(const std::string& file, size_t line) {
  size_t at = 0;
  for (size_t i = 1; i < line && at != file.npos; ++i) at = file.find('\n', at) + 1;
  const std::string text = file.substr(at, file.find('\n', at) - at);
  const size_t equals = text.find('=');
  if (equals == text.npos) return "";
  const std::string key = trimmed(text.substr(0, equals));
  std::string value = trimmed(text.substr(equals + 1, text.find('#') - equals - 1));
  if (value.ends_with('\r')) value.pop_back();
  if (value.empty() || value.find_first_of("\"'[]{}") != value.npos) return "";
  switch (plain_form(key)) {
    case Plain::kText: return fmt::format("{} = \"{}\"", key, value);
    case Plain::kTexts: return fmt::format("{} = [\"{}\"]", key, value);
    default: return "";
  }
}

}  // namespace

std::vector<std::string> recipe_keys() {
  std::vector<std::string> keys;
  each_key(kDefault, [&](const char* name, const auto&, Range) { keys.emplace_back(name); });
  return keys;
}

std::string find_key(const std::string& word) {
  std::string plain = word;
  std::replace(plain.begin(), plain.end(), '-', '_');
  const std::vector<std::string> keys = recipe_keys();
  if (std::find(keys.begin(), keys.end(), plain) != keys.end()) return plain;
  const auto other = std::ranges::find(other_keys(), std::string_view(plain), &OtherName::other);
  return other == other_keys().end() ? "" : std::string(other->ours);
}

double Recipe::decay() const {
  const bool coupled = optimizer == OptimizerKind::kSgd || optimizer == OptimizerKind::kAdam;
  return weight_decay.value_or(coupled ? 0 : 0.05);
}

// As their papers and timm have them: LAMB clips and has a larger eps, Lion a shorter memory.
Hyper Recipe::hyper() const {
  const bool lion = optimizer == OptimizerKind::kLion, lamb = optimizer == OptimizerKind::kLamb,
             muon = optimizer == OptimizerKind::kMuon;
  const std::vector<double> b = betas.value_or(std::vector<double>{0.9, lion ? 0.99 : 0.999});
  return {.beta1 = b[0],
          .beta2 = b[1],
          .momentum = momentum.value_or(muon ? 0.95 : 0.9),
          .eps = eps.value_or(lamb ? 1e-6 : 1e-8),
          .decay = decay(),
          .clip_norm = clip_norm.value_or(lamb ? 1 : 0),
          .nesterov = nesterov.value_or(muon)};
}

void load_recipe(Recipe& recipe, const std::string& path) {
  constexpr size_t kLimit = 1 << 20;
  toml::table table;
  const std::string text = read_file(path, kLimit);
  if (const std::string problem = toml_problem(text); !problem.empty())
    fail_usage("{}: it {}", path, problem);
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    if (const std::string meant = with_quotes(text, line); !meant.empty())
      fail_usage("{}:{}: text needs quotes: {}", path, line, shown(meant));
    fail_usage("{}:{}: {}", path, line, shown(error.description()));
  }
  // By line, so that the first mistake is the one reported.
  std::vector<std::pair<std::string, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(key.str(), &node);
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin < b.second->source().begin;
  });
  for (const auto& [key, node] : entries)
    read_key(recipe, key, *node, fmt::format("{}:{}", path, node->source().begin.line));
}

void set_key(Recipe& recipe, const std::string& key, const std::string& value,
             const std::string& where) {
  // A run keeps its recipe as TOML, and would not find again what it names.
  if (!is_utf8(value))
    fail_usage("{}: '{}' is not UTF-8, as a recipe is; rename the file or folder", where,
               printable(value));
  const std::string text = trimmed(value);
  const bool plain = text.empty() || std::string_view("\"'[{").find(text[0]) == std::string::npos;
  const Plain form = plain ? plain_form(key) : Plain::kToml;
  toml::table table;
  try {
    if (form == Plain::kText)
      table.insert("value", text);
    else if (form == Plain::kTexts)
      table.insert("value", comma_separated(text));
    else if (const std::string problem = toml_problem(text); !problem.empty())
      fail_usage("{}: the value of {} {}", where, shown(key), problem);
    else
      table = toml::parse(form == Plain::kNumbers ? "value = [" + text + "]" : "value = " + text);
    if (table.size() != 1) table.insert_or_assign("value", text);  // more lines than one
  } catch (const toml::parse_error&) {
    table.insert_or_assign("value", text);  // the type check below says what was expected
  }
  read_key(recipe, key, *table.get("value"), where);
}

void set_assignment(Recipe& recipe, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos) fail_usage("--set {}: expected key=value", shown(assignment));
  set_key(recipe, trimmed(assignment.substr(0, equals)), assignment.substr(equals + 1), "--set");
}

std::string to_toml(const Recipe& recipe) {
  std::string text;
  each_key(recipe, [&](const char* name, const auto& member, Range) {
    if (const std::string value = literal(member); !value.empty())
      text += fmt::format("{} = {}\n", name, value);
  });
  return text;
}

std::vector<std::string> changed_keys(const Recipe& before, const Recipe& after) {
  std::vector<std::string> values, changed;
  each_key(before,
           [&](const char*, const auto& member, Range) { values.push_back(literal(member)); });
  each_key(after, [&, i = size_t{0}](const char* name, const auto& member, Range) mutable {
    if (literal(member) != values[i++]) changed.emplace_back(name);
  });
  return changed;
}

Schedule schedule_of(const Recipe& r, int64_t steps_per_epoch) {
  const int64_t all = r.epochs * steps_per_epoch;
  const auto per_epoch = static_cast<double>(steps_per_epoch);
  return {.kind = r.schedule,
          .unit = r.schedule_unit,
          .lr = r.lr,
          .min_lr = r.min_lr,
          .warmup_steps = r.warmup_epochs * per_epoch + static_cast<double>(r.warmup_steps),
          .total_steps = r.max_steps > 0 ? std::min(r.max_steps, all) : all,
          .steps_per_epoch = steps_per_epoch};
}

}  // namespace vitrum
