// What weights/ knows of one model family: its names and layouts in files, its keys in configs, and
// how a stored model is made to fit. A family is one file of families/ and one line of
// families.cpp; a member that it lacks does not compile. Internal to weights/.
#pragma once
#include <concepts>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/weights/adapt.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// What fields() of a family shows: every field of its config under the name that our own object in
// config.json has for it.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void operator()(const char* key, int64_t& field, IntRange range) = 0;
  virtual void operator()(const char* key, std::vector<int64_t>& field, IntRange range) = 0;
  virtual void operator()(const char* key, bool& field) = 0;
  virtual void operator()(const char* key, float& field) = 0;
  virtual void operator()(const char* key, double& field) = 0;
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char* key, Enum& field, std::span<const std::string_view> names) {
    field = static_cast<Enum>(choice(key, static_cast<size_t>(field), names));
  }

 private:
  virtual size_t choice(const char* key, size_t now, std::span<const std::string_view> names) = 0;
};

// What a file says of itself.
class StoredDims {
 public:
  virtual ~StoredDims() = default;
  // The dimensions of a one-tensor parameter, in our order, where it has `rank` of them; else none.
  virtual std::vector<int64_t> operator()(const char* param, int rank) const = 0;
  // The numbers of what is no parameter, by the file's own name; none where it is not there.
  virtual std::vector<float> values(const char* name) const = 0;
};

// A tensor that no model here needs, and a framework does not load without.
struct BesideTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

// A model as timm's config.json has it.
struct TimmConfig {
  std::string architecture;  // one that timm knows, or "vitrum_x" where it has no such model
  std::string pool;          // "avg" or "token"
  std::string model_args;    // a JSON object
  std::string first;         // what timm replaces for other channels, and for other classes
  std::vector<std::string> classifiers;
  bool says_eps =
      false;  // timm computes with the model's eps, too, where that is not its usual one
};

// clang-format off
template <class F>
concept WeightsOf = requires(typename F::Config& c, const typename F::Config& k, FieldVisitor& visit,
                             const JsonKeys& keys, const Dialect& dialect, const StoredDims& dims,
                             ModelSpec& spec, Preprocessing& p, const std::string& text) {
  { F::kDialects } -> std::convertible_to<std::span<const Dialect>>;
  // transformers' model_type, which is also what stands before its names: "vit.layernorm".
  { F::kFixedInputSize } -> std::convertible_to<bool>;  // the model is for one size of image
  { F::kHf } -> std::convertible_to<std::span<const std::string_view>>;
  { F::holds(k) } -> std::same_as<bool>;  // it is written as one of these
  F::fields(visit, c);
  { F::same_sizes(k, k) } -> std::same_as<bool>;  // of a preset's config and another
  F::check_size(k, text);  // fails naming `text` where a model is too large to be meant
  // ---- configs ----
  F::read_timm(/*top=*/keys, /*model_args=*/keys, c);
  { F::write_timm(spec, k) } -> std::same_as<TimmConfig>;
  F::read_hf(keys, c);
  { F::write_hf(k, /*dtype=*/text) } -> std::same_as<std::string>;  // a JSON object, without labels
  { F::hf_base(k) } -> std::same_as<std::string_view>;  // stands before names where a head is
  F::read_preprocessor(ConfigText{}, spec);  // transformers'
  // ---- files ----
  { F::layout_sizes(k) } -> std::same_as<LayoutSizes>;
  { F::stored_sizes(k, dialect, dims) } -> std::same_as<typename F::Config>;
  F::as_published(dialect, c, p);  // where a bare file cannot say
  // ---- other sizes, other frameworks ----
  F::take_stored(c, k);  // what of a stored model can be adapted, beside image size and channels
  { F::adapt(k, k, PositionRule{}) } -> std::same_as<std::unique_ptr<Adapter>>;
  F::require_plain(dialect, k);  // fails where a framework has no such model
  F::give_biases(dialect, c);    // those that it cannot do without; zeros compute the same
  { F::notes(dialect, k, /*says_so=*/true) } -> std::same_as<std::vector<std::string>>;
  { F::two_heads(k) } -> std::same_as<bool>;
  { F::beside(dialect, k) } -> std::same_as<std::vector<BesideTensor>>;
};
// clang-format on

// The same, whatever the config's type is.
struct WeightFamily {
  std::string_view name;  // as family_of()
  std::span<const Dialect> dialects;
  std::span<const std::string_view> model_types;
  bool fixed_input_size;
  bool (*holds)(const ModelConfig&);
  ModelConfig (*defaults)();
  void (*fields)(FieldVisitor&, ModelConfig&);
  bool (*same_sizes)(const ModelConfig& preset, const ModelConfig&);
  void (*check_size)(const ModelConfig&, const std::string& path);
  void (*read_timm)(const JsonKeys& top, const JsonKeys& args, ModelConfig&);
  TimmConfig (*write_timm)(const ModelSpec&);
  void (*read_hf)(const JsonKeys&, ModelConfig&);
  std::string (*write_hf)(const ModelConfig&, const std::string& dtype);
  std::string_view (*hf_base)(const ModelConfig&);
  void (*read_preprocessor)(const ConfigText&, ModelSpec&);
  LayoutSizes (*layout_sizes)(const ModelConfig&);
  ModelConfig (*stored_sizes)(const ModelConfig&, const Dialect&, const StoredDims&);
  void (*as_published)(const Dialect&, ModelSpec&);
  void (*take_stored)(ModelConfig& wanted, const ModelConfig& stored);
  std::unique_ptr<Adapter> (*adapt)(const ModelConfig& stored, const ModelConfig& wanted,
                                    PositionRule);
  void (*require_plain)(const Dialect&, const ModelConfig&);
  void (*give_biases)(const Dialect&, ModelConfig&);
  std::vector<std::string> (*notes)(const Dialect&, const ModelConfig&, bool says_so);
  bool (*two_heads)(const ModelConfig&);
  std::vector<BesideTensor> (*beside)(const Dialect&, const ModelConfig&);
};

template <WeightsOf F>
constexpr WeightFamily family(std::string_view name) {
  using C = typename F::Config;
  using M = ModelConfig;
  return {
      .name = name,
      .dialects = F::kDialects,
      .model_types = F::kHf,
      .fixed_input_size = F::kFixedInputSize,
      .holds = [](const M& m) { return F::holds(*m.as<C>()); },
      .defaults = [] { return M(C{}); },
      .fields = [](FieldVisitor& visit, M& m) { F::fields(visit, *m.as<C>()); },
      .same_sizes =
          [](const M& preset, const M& m) {
            return preset.as<C>() && F::same_sizes(*preset.as<C>(), *m.as<C>());
          },
      .check_size = [](const M& m, const std::string& path) { F::check_size(*m.as<C>(), path); },
      .read_timm = [](const JsonKeys& top, const JsonKeys& args,
                      M& m) { F::read_timm(top, args, *m.as<C>()); },
      .write_timm = [](const ModelSpec& s) { return F::write_timm(s, *s.config.as<C>()); },
      .read_hf = [](const JsonKeys& keys, M& m) { F::read_hf(keys, *m.as<C>()); },
      .write_hf = [](const M& m, const std::string& d) { return F::write_hf(*m.as<C>(), d); },
      .hf_base = [](const M& m) { return F::hf_base(*m.as<C>()); },
      .read_preprocessor = &F::read_preprocessor,
      .layout_sizes = [](const M& m) { return F::layout_sizes(*m.as<C>()); },
      .stored_sizes =
          [](const M& m, const Dialect& dialect, const StoredDims& dims) {
            return M(F::stored_sizes(*m.as<C>(), dialect, dims));
          },
      .as_published =
          [](const Dialect& dialect, ModelSpec& s) {
            F::as_published(dialect, *s.config.as<C>(), s.preprocess);
          },
      .take_stored = [](M& wanted,
                        const M& stored) { F::take_stored(*wanted.as<C>(), *stored.as<C>()); },
      .adapt = [](const M& stored, const M& wanted,
                  PositionRule rule) { return F::adapt(*stored.as<C>(), *wanted.as<C>(), rule); },
      .require_plain = [](const Dialect& d, const M& m) { F::require_plain(d, *m.as<C>()); },
      .give_biases = [](const Dialect& d, M& m) { F::give_biases(d, *m.as<C>()); },
      .notes = [](const Dialect& d, const M& m,
                  bool says_so) { return F::notes(d, *m.as<C>(), says_so); },
      .two_heads = [](const M& m) { return F::two_heads(*m.as<C>()); },
      .beside = [](const Dialect& d, const M& m) { return F::beside(d, *m.as<C>()); },
  };
}

std::span<const WeightFamily* const> weight_families();
const WeightFamily& weights_of(const ModelConfig& config);

// ---- what families share ----

// Sizes of a model that is too large to be meant.
inline constexpr double kMaxParameters = 1e11, kMaxTokens = 1 << 20;

// timm's rule where a model takes another number of input channels than are stored: one is the sum
// of all, so a grey image gives what it gave in RGB; otherwise they are repeated in turn and
// scaled, so that activations keep their size. The weight is (width, from channels, ..), or
// channels last.
std::vector<float> adapt_channels(const std::vector<float>& weight, int64_t width, int64_t from,
                                  int64_t to, bool channels_first);

// For families that store nothing by position: only the first layer's channels change.
class ChannelAdapter final : public Adapter {
 public:
  struct FirstLayer {
    std::string weight, title;  // its parameter, (width, channels, ..), and what people call it
    int64_t width = 0;
  };
  ChannelAdapter(FirstLayer first, int64_t stored, int64_t wanted);

  bool changes(const std::string& param) const override;
  std::vector<float> operator()(const std::string& param,
                                const std::vector<float>& values) const override;
  std::vector<std::string> report() const override;

 private:
  const FirstLayer first_;
  const int64_t stored_, wanted_;
};

// The side of a square of n, 0 where n is none.
int64_t square_root(int64_t n);

// Pixels of ImageNet, and how files without a config are published.
inline const std::vector<float> kImageNetMean = {0.485f, 0.456f, 0.406f},
                                kImageNetStd = {0.229f, 0.224f, 0.225f};
void center_crop(Preprocessing& p, const char* interpolation, int64_t resize);

// What require_plain() is made of: fails where a framework has no such model.
struct RequirePlain {
  const Dialect& dialect;
  const char* kind;  // of models: "ViT"
  void operator()(bool has, const char* what) const;
};

// What a framework without a place to say so computes otherwise: eps and activation.
std::vector<std::string> computed_otherwise(const Dialect& dialect, float eps, Act act,
                                            bool says_so);

}  // namespace vitrum
