// How frameworks name and lay out a model's parameters, as tables (families/). Our own names are
// timm's.
#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/models/model.h"
#include "vitrum/weights/positions.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {

// A parameter as the file holds it, next to ours (out, in).
enum class Layout : uint8_t {
  kSame,
  kConv,        // (out, channels, patch_h, patch_w): the same memory
  kConvHwio,    // (patch_h, patch_w, channels, out)
  kKernel,      // (in, out)
  kHeadKernel,  // (in, heads, dim)
  kOutKernel,   // (heads, dim, out)
  kHeadBias,    // (heads, dim): the same memory
  kSqueezed,    // without its dimensions of 1: the same memory
  kNeighbours,  // (out, channels, 2, 2), ours (out, 2, 2, channels)
  kPixel,       // (out, in, 1, 1) where the model says so: the same memory
  kPlanes,      // (channels, 1, 1): the same memory
  kLine,        // (1, 1, 1, channels): the same memory
  kGrid,        // (1, side, side, out), ours (out, side * side)
  kPatch,       // kConv; (out, patch_h * patch_w * channels) where the model says so
};

// The sizes that layouts are about.
struct LayoutSizes {
  int64_t patch_h = 1, patch_w = 1, channels = 1, heads = 1, head_dim = 1;
  bool channel_last = false;  // patches are flattened (P, P, C)
  bool pixels = false;        // layers of MLPs are stored as convolutions of one pixel
  // Weights of patches are stored (P, P, C), though the model flattens them (C, P, P).
  bool patch_rows = false;
};
LayoutSizes layout_sizes(const ModelConfig& config);

// `ours` is a parameter, or the part before a dot of several, which then end alike in the file. {i}
// is the block and {s} the stage, of which {s-1}, {2s} and {2s+1} may be told; {a,b,c} stands for
// as many tensors, each its share of our rows, of which - is in no file: rows held at zero, see
// ParamSpec::held; [1:3/3] at the end means those thirds of a tensor's rows that other parameters
// are parts of, too; [1:] all rows of a token's but the first; a leading ^ means outside the base
// model: "vit.layernorm", but "classifier".
struct NameRule {
  std::string_view ours, theirs;
  std::string_view other = {};  // the second spelling, where one is in use
  Layout layout = Layout::kSame;
  bool two_heads = false;  // only in files with a distillation head
  // A tensor whose first row is added to ours: a class token's own position, where our model has
  // none. What is written has zeros there.
  std::string_view plus = {};
};

// Tables one after the other.
template <size_t... kLengths>
constexpr std::array<NameRule, (kLengths + ...)> joined(const NameRule (&... tables)[kLengths]) {
  std::array<NameRule, (kLengths + ...)> all;
  auto end = all.begin();
  ((end = std::copy(tables, tables + kLengths, end)), ...);
  return all;
}

// timm's names of models that cut patches.
inline constexpr NameRule kTimmRules[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, Layout::kConv},
    {"", ""},
};

struct Dialect {
  std::string_view family;  // as family_of()
  std::string_view name, title;
  std::span<const NameRule> rules;
  // What such names start with (*.x: end with) is not needed; ^x are names that do not have the
  // file's prefix.
  std::span<const std::string_view> ignored;
  std::span<const std::string_view> before_head;  // and this not without the head
  // Our names of parameters that tell this dialect and its spellings from others; every model of
  // the family has the first.
  std::span<const std::string_view> probes;
  PositionRule positions;
  // What the framework computes with where a bare file cannot say.
  float eps;
  Act act;
  // Of the files that the model's authors publish: it may be asked for as "original". They have no
  // directories.
  bool original = false;
  std::string_view prefix = {};  // stands before every name that is written
};

// Of those that such a model is written in: "timm", "hf", "torchvision", "npz" and "original"; an
// unknown one is a usage error.
const Dialect& find_dialect(const ModelConfig& config, std::string_view name);

// A dialect as one file has it: its spelling, and what stands before every name ("module.", "vit.",
// "opt/target/").
struct Naming {
  const Dialect* dialect = nullptr;
  bool other_spelling = false;
  std::string prefix;
  bool two_heads = false;  // there is a distillation head
};

// Of its rows the parameter has parts [first, last) of `of`: all of them, but for rules that say
// otherwise.
struct StoredTensor {
  std::string name;  // empty: these rows are held at zero and in no file
  Shape shape;       // of the whole
  int64_t first = 0, last = 1, of = 1;
  template <class Bytes>
  Bytes part(Bytes whole) const {
    const size_t each = whole.size() / static_cast<size_t>(of);
    return whole.subspan(each * static_cast<size_t>(first),
                         each * static_cast<size_t>(last - first));
  }
};
struct StoredParam {
  std::vector<StoredTensor> tensors;  // one, or as query, key and value several; the first is there
  Layout layout = Layout::kSame;
  std::string plus;  // the tensor whose first row is added; empty: none
};

// Where a file holds the parameter `name` of our shape; none where the dialect has no place for it.
std::optional<StoredParam> stored_as(const Naming& naming, std::string_view name,
                                     const Shape& shape, const ModelConfig& config);

// The naming that most of a model's names are found under; fails naming what was found where none
// is.
Naming detect_naming(const TensorSource& file);

enum class Extra { kUnknown, kIgnored, kBeforeHead };
Extra extra_tensor(const Naming& naming, std::string_view name);

}  // namespace vitrum
