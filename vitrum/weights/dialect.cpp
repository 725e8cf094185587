#include "vitrum/weights/dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/weights/family.h"

namespace vitrum {
namespace {

// "layers.2.blocks.12.norm1.bias" -> "layers.{s}.blocks.{i}.norm1.bias", "2" and "12". The stage is
// behind "layers" or "stages", the block behind "blocks" or ("layer1.0") a ResNet's layer.
struct OurName {
  std::string pattern, stage, block;
};
OurName our_name(std::string_view name) {
  OurName ours;
  std::string_view before;
  for (size_t from = 0, to = 0; from <= name.size(); from = to + 1) {
    to = std::min(name.find('.', from), name.size());
    const std::string_view part = name.substr(from, to - from);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    const bool stage = number && (before == "layers" || before == "stages"),
               block = number && !stage && ours.block.empty() &&
                       (before.ends_with("blocks") || before.starts_with("layer"));
    if (stage) ours.stage = part;
    if (block) ours.block = part;
    if (from > 0) ours.pattern += '.';
    ours.pattern += stage ? "{s}" : block ? "{i}" : part;
    before = part;
  }
  return ours;
}

// What of `pattern` follows the rule's name; none where the rule is about something else.
std::optional<std::string_view> rest(const NameRule& rule, std::string_view pattern) {
  if (rule.ours.empty()) return pattern;
  if (!pattern.starts_with(rule.ours)) return std::nullopt;
  pattern.remove_prefix(rule.ours.size());
  return pattern.empty() || pattern[0] == '.' ? std::optional(pattern) : std::nullopt;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const size_t at = text.find(what);
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

std::string numbered(std::string text, const OurName& ours) {
  text = replaced(std::move(text), "{i}", ours.block);
  if (ours.stage.empty() || ours.stage.size() > 3) return text;
  const int stage = std::stoi(ours.stage);
  const std::pair<const char*, int> forms[] = {
      {"{s}", stage}, {"{s-1}", stage - 1}, {"{2s}", 2 * stage}, {"{2s+1}", 2 * stage + 1}};
  for (const auto& [form, number] : forms)
    text = replaced(std::move(text), form, std::to_string(number));
  return text;
}

// "a.{x,-,z}.b" -> a.x.b, nothing, a.z.b
std::vector<std::string> expanded(const std::string& name) {
  const size_t open = name.find('{'), close = name.find('}');
  if (open == name.npos || close == name.npos) return {name};
  std::vector<std::string> all;
  for (size_t from = open + 1; from <= close;) {
    const size_t to = std::min(name.find(',', from), close);
    const std::string part = name.substr(from, to - from);
    all.push_back(part == "-" ? "" : name.substr(0, open) + part + name.substr(close + 1));
    from = to + 1;
  }
  return all;
}

// The prefix less the base model's own part: "module.vit." -> "module.".
std::string_view outer(std::string_view prefix) {
  constexpr std::string_view kTower = "vision_model.";  // of CLIP and its kin
  if (prefix.ends_with(kTower)) return prefix.substr(0, prefix.size() - kTower.size());
  for (const WeightFamily* family : weight_families())
    for (const std::string_view type : family->model_types) {
      const std::string base = fmt::format("{}.", type);
      if (prefix.ends_with(base)) return prefix.substr(0, prefix.size() - base.size());
    }
  return prefix;
}

std::string with_prefix(const Naming& naming, std::string_view name) {
  return name.starts_with('^') ? fmt::format("{}{}", outer(naming.prefix), name.substr(1))
                               : naming.prefix + std::string(name);
}

struct Match {
  std::vector<std::string> names;
  Layout layout;
  std::string plus;
};
std::optional<Match> match(const Naming& naming, std::string_view name) {
  const OurName ours = our_name(name);
  for (const NameRule& rule : naming.dialect->rules) {
    const auto tail = rest(rule, ours.pattern);
    if (!tail || (rule.two_heads && !naming.two_heads)) continue;
    const bool other = naming.other_spelling && !rule.other.empty();
    const std::string theirs =
        with_prefix(naming, fmt::format("{}{}", other ? rule.other : rule.theirs, *tail));
    return Match{expanded(numbered(theirs, ours)), rule.layout,
                 rule.plus.empty() ? "" : with_prefix(naming, rule.plus)};
  }
  return std::nullopt;
}

// `shape` is ours, of one of the tensors.
Shape stored_shape(Layout layout, const Shape& shape, const LayoutSizes& s) {
  switch (layout) {
    case Layout::kSame: break;
    case Layout::kConv:
      // Patches flattened channel last are no convolution's.
      if (s.channel_last) break;
      return {shape[0], s.channels, s.patch_h, s.patch_w};
    case Layout::kPatch:
      if (s.patch_rows || s.channel_last) break;
      return {shape[0], s.channels, s.patch_h, s.patch_w};
    case Layout::kConvHwio: return {s.patch_h, s.patch_w, s.channels, shape[0]};
    case Layout::kKernel: return {shape[1], shape[0]};
    case Layout::kHeadKernel: return {shape[1], s.heads, s.head_dim};
    case Layout::kOutKernel: return {s.heads, s.head_dim, shape[0]};
    case Layout::kHeadBias: return {s.heads, s.head_dim};
    case Layout::kSqueezed: {
      Shape squeezed;
      for (const int64_t n : shape)
        if (n != 1) squeezed.append(n);
      return squeezed;
    }
    case Layout::kNeighbours: return {shape[0], shape[1] / 4, 2, 2};
    case Layout::kPixel: return s.pixels ? Shape{shape[0], shape[1], 1, 1} : shape;
    case Layout::kPlanes: return {shape[0], 1, 1};
    case Layout::kLine: return {1, 1, 1, shape[0]};
    case Layout::kGrid: {
      const int64_t side = square_root(shape[1]);
      return {1, side, side, shape[0]};
    }
  }
  return shape;
}

Shape with_rows(const Shape& shape, int64_t rows) {
  Shape s{rows};
  for (int i = 1; i < shape.rank(); ++i) s.append(shape[i]);
  return s;
}

// "name[1:3/3]" -> name, 1, 3 and 3: digits of the tables in families/. `shape` is that of the
// part.
StoredTensor in_parts(const std::string& name, const Shape& shape) {
  const size_t at = name.rfind('[');
  if (!name.ends_with(']')) return {name, shape};
  if (name.ends_with("[1:]")) {  // of (1, tokens, width)
    const int64_t rows = shape.rank() > 1 ? shape[1] + 1 : 1;
    const Shape whole = shape.rank() > 2 ? Shape{shape[0], rows, shape[2]} : shape;
    return {name.substr(0, at), whole, 1, rows, rows};
  }
  const auto digit = [&](size_t i) { return int64_t{name[at + i] - '0'}; };
  StoredTensor t{name.substr(0, at), {}, digit(1), digit(3), digit(5)};
  t.shape = with_rows(shape, shape[0] / (t.last - t.first) * t.of);
  return t;
}

constexpr int kMaxPrefixes = 8;  // of one dialect; a file has one or two

int score(const TensorSource& file, const Naming& naming) {
  int found = 0;
  for (const std::string_view probe : naming.dialect->probes) {
    const auto m = match(naming, probe);
    found += m && file.find(m->names[0].substr(0, m->names[0].find('['))) != nullptr;
  }
  return found;
}

std::string first_names(const TensorSource& file) {
  std::vector<std::string> names;
  for (const TensorInfo& t : file.tensors())
    if (names.size() < 3) names.push_back(shown_name(t.name));
  return names.empty() ? "nothing" : join(names, ", ");
}

bool starts_with_any(std::string_view name, std::span<const std::string_view> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](std::string_view s) {
    return s.starts_with('*') ? name.ends_with(s.substr(1)) : name.starts_with(s);
  });
}

bool is_beside(const Dialect& dialect, std::string_view name) {
  return std::any_of(dialect.ignored.begin(), dialect.ignored.end(), [&](std::string_view s) {
    return s.starts_with('^') && name.starts_with(s.substr(1));
  });
}

}  // namespace

LayoutSizes layout_sizes(const ModelConfig& config) {
  return weights_of(config).layout_sizes(config);
}

std::optional<StoredParam> stored_as(const Naming& naming, std::string_view name,
                                     const Shape& shape, const ModelConfig& config) {
  auto m = match(naming, name);
  if (!m) return std::nullopt;
  StoredParam stored{{}, m->layout, std::move(m->plus)};
  const LayoutSizes sizes = layout_sizes(config);
  const auto parts = static_cast<int64_t>(m->names.size());
  const Shape each = parts == 1 ? shape : with_rows(shape, shape[0] / parts);
  for (const std::string& n : m->names)
    stored.tensors.push_back(in_parts(n, stored_shape(m->layout, each, sizes)));
  return stored;
}

const Dialect& find_dialect(const ModelConfig& config, std::string_view name) {
  std::vector<std::string> names;
  for (const Dialect& d : weights_of(config).dialects) {
    const std::string_view called = d.original ? "original" : d.name;
    if (called == name || d.name == name) return d;
    names.emplace_back(called);
  }
  fail_usage("unknown dialect '{}' of {} weights; there are {}{}", name, family_of(config),
             join(names, ", "), did_you_mean(name, names));
}

// The best of the dialect's namings of this file, where it is better than what was found before.
static void find_better(const TensorSource& file, const Dialect& dialect, Naming& best,
                        int& best_score) {
  // Every model has this one, so what stands before it is the file's prefix.
  const std::string mark = match({&dialect, false, {}}, dialect.probes[0])->names[0];
  int candidates = 0;
  for (const TensorInfo& t : file.tensors()) {
    if (!t.name.ends_with(mark) || candidates == kMaxPrefixes) continue;
    const std::string prefix = t.name.substr(0, t.name.size() - mark.size());
    if (!prefix.empty() && prefix.back() != '.' && prefix.back() != '/') continue;
    ++candidates;
    for (const bool other : {false, true}) {
      const Naming candidate{&dialect, other, prefix};
      const int points = score(file, candidate);
      if (points > best_score) best = candidate, best_score = points;
    }
  }
}

Naming detect_naming(const TensorSource& file) {
  Naming best;
  int best_score = 0;
  for (const WeightFamily* family : weight_families())
    for (const Dialect& dialect : family->dialects) find_better(file, dialect, best, best_score);
  if (best_score == 0)
    fail_input(
        "'{}' holds no model under names we know (timm, Hugging Face, torchvision, Google); found "
        "{}",
        file.path(), first_names(file));
  best.two_heads = true;
  const auto second = match(best, "head_dist.weight");
  best.two_heads = second && file.find(second->names[0]) != nullptr;
  return best;
}

Extra extra_tensor(const Naming& naming, std::string_view name) {
  // How often a batch norm was updated: PyTorch counts it and, with a momentum, never reads it.
  if (name.ends_with(".num_batches_tracked")) return Extra::kIgnored;
  if (!name.starts_with(naming.prefix))
    return is_beside(*naming.dialect, name) ? Extra::kIgnored : Extra::kUnknown;
  name.remove_prefix(naming.prefix.size());
  if (starts_with_any(name, naming.dialect->ignored)) return Extra::kIgnored;
  if (starts_with_any(name, naming.dialect->before_head)) return Extra::kBeforeHead;
  return Extra::kUnknown;
}

}  // namespace vitrum
