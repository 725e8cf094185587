#include "vitrum/weights/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "vitrum/core/e4m3.h"
#include "vitrum/core/eight_bits.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/mae_decoder.h"
#include "vitrum/weights/stored_tensors.h"
#include "vitrum/weights/text_tower.h"
#include "vitrum/weights/tower_pair.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

enum class Format { kDirectory, kSafetensors, kPth, kNpz };

// `pair`: both towers of a model of images and texts are written.
Format format_of(const std::string& target, const Dialect& dialect, bool pair) {
  const std::string extension = fs::path(target).extension().string();
  if (dialect.name == "npz") {
    if (extension != ".npz") fail_usage("{}: --to npz writes a file that ends in .npz", target);
    return Format::kNpz;
  }
  if (extension == ".safetensors") return Format::kSafetensors;
  if (extension == ".pth" || extension == ".pt" || extension == ".bin") return Format::kPth;
  if (dialect.name == "torchvision" || (dialect.original && !pair))
    fail_usage("{}: {} has no model directories; end the name in .pth or .safetensors", target,
               dialect.title);
  return Format::kDirectory;
}

// The base model's part of a name in transformers' files.
Naming naming_for(const Dialect& dialect, const ModelConfig& config) {
  const WeightFamily& family = weights_of(config);
  const bool prefixed = dialect.name == "hf" && config.classes() > 0;
  return {&dialect, false,
          prefixed ? fmt::format("{}.", family.hf_base(config)) : std::string(dialect.prefix),
          family.two_heads(config)};
}

// Such a bias is as good as none, which some frameworks insist on; those that insist on one are
// given it again.
bool has_zero_head_bias(const Checkpoint& file, std::span<const ParamSpec> params,
                        const ModelConfig& config) {
  bool found = false;
  for (const ParamSpec& p : params) {
    if (!in_head(config, p.name) || !p.name.ends_with(".bias")) continue;
    std::vector<std::byte> scratch;
    const auto bytes = file.read(p, config, scratch);
    if (!std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) return false;
    found = true;
  }
  return found;
}

const char* torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kF64: return "float64";
    default: return "float32";
  }
}

// Weights first, configs last, as save_model_dir does. What cannot be written is known before
// anything is. What belongs to a model that was there before goes when the new weights are
// complete, so that a directory never has the weights of one model and the config of another.
void write_directory(const fs::path& dir, std::string_view dialect, const ModelSpec& spec,
                     const TowerPair* pair, const DecoderCopy* decoder,
                     std::span<const NamedTensor> tensors,
                     const std::optional<std::vector<std::string>>& floats, DType eight_bits,
                     const std::function<void()>& verify) {
  const std::string preprocessor = dialect == "hf" ? hf_preprocessor_text(spec) : "";
  const std::string dtype = torch_dtype(tensors.front().tensor.dtype);
  std::string config = pair              ? pair->config_text(spec, dtype)
                       : dialect == "hf" ? hf_config_text(spec, dtype)
                                         : model_config_text(spec);
  if (decoder && dialect == "hf") config = decoder->hf_config(config);
  if (floats) config = with_quantization(config, *floats, eight_bits);
  if (pair) pair->require_room(dir);
  ensure_directory(dir.string());
  remove_stale_temporaries(dir.string());
  const std::string config_name = pair ? pair->config_name() : "config.json";
  const auto verify_and_clear = [&] {
    verify();
    std::error_code ignored;
    for (const std::string& name :
         {config_name, std::string("preprocessor_config.json"), std::string("decoder.safetensors")})
      fs::remove(dir / name, ignored);
  };
  write_safetensors((dir / (pair ? pair->weights_name() : "model.safetensors")).string(), tensors,
                    {{"format", "pt"}}, verify_and_clear);
  if (dialect == "hf") write_file_atomic((dir / "preprocessor_config.json").string(), preprocessor);
  if (pair) pair->copy_tokenizer(dir);
  if (decoder && dialect == "timm") decoder->write_file(dir.string());
  write_file_atomic((dir / config_name).string(), config);
}

// A matrix of f32, rounded row by row.
struct ByteMatrix {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  double error = 0;
};

ByteMatrix to_bytes(std::span<const float> w, size_t rows, DType eight_bits) {
  const size_t width = w.size() / rows;
  ByteMatrix out{.bytes = std::vector<std::byte>(w.size())};
  auto* q = reinterpret_cast<int8_t*>(out.bytes.data());
  auto* floating = reinterpret_cast<uint8_t*>(out.bytes.data());
  const bool is_int = eight_bits == DType::kI8;
  double lost = 0, all = 0;
  for (size_t i = 0; i < w.size(); i += width) {
    const std::span<const float> row = w.subspan(i, width);
    const float scale = is_int ? round_weights(row, q + i) : round_weights_e4m3(row, floating + i);
    for (size_t k = i; k < i + width; ++k) {
      const double x = w[k], number = is_int ? static_cast<float>(q[k]) : from_e4m3(floating[k]),
                   off = x - static_cast<double>(scale) * number;
      lost += off * off, all += x * x;
    }
    out.scales.push_back(scale > 0 ? scale : 1);  // a row of zeros has any
  }
  out.error = all > 0 ? std::sqrt(lost / all) : 0;
  return out;
}

std::string layer_of(const std::string& param) { return param.substr(0, param.rfind('.')); }

// Names of layers as the file has them, whose weights are matrices of floats.
std::vector<std::string> float_layers(std::span<const NamedTensor> tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& t : tensors)
    if (t.tensor.shape.rank() == 2 && t.tensor.dtype != DType::kI8 &&
        t.tensor.dtype != DType::kE4M3 && t.name.ends_with(".weight"))
      names.push_back(layer_of(t.name));
  return names;
}

// The model as its file has it.
struct StoredModel {
  const Checkpoint& file;
  const std::vector<ParamSpec>& params;
  const ModelConfig& config;
};

// Every parameter of what is written; those that are not stored are biases of zero.
std::vector<QuantizedLayer> add_params(const StoredModel& stored, const ModelSpec& spec,
                                       const InBytes& in_bytes, DType eight_bits,
                                       StoredTensors& written) {
  const auto& [file, params, config] = stored;
  std::vector<QuantizedLayer> layers;
  DType dtype = DType::kF32;  // zeros are of the type of the parameter before them
  for (const ParamSpec& param : model_params(spec.config)) {
    const bool is_stored = std::ranges::find(params, param.name, &ParamSpec::name) != params.end();
    std::vector<std::byte> scratch;
    std::span<const std::byte> bytes;
    if (is_stored)
      dtype = file.dtype(param, config), bytes = file.read(param, config, scratch);
    else
      scratch.resize(static_cast<size_t>(param.shape.numel()) * size_of(dtype));
    if (in_bytes && param.name.ends_with(".weight") && in_bytes(layer_of(param.name))) {
      ByteMatrix matrix =
          to_bytes(to_floats(bytes, dtype), static_cast<size_t>(param.shape[0]), eight_bits);
      written.add(param, eight_bits, written.keep(std::move(matrix.bytes)));
      written.add_scales(param, matrix.scales);
      layers.push_back({layer_of(param.name), matrix.error});
      continue;
    }
    if (!scratch.empty()) bytes = written.keep(std::move(scratch));
    written.add(param, dtype, bytes);
  }
  return layers;
}

}  // namespace

void require_hf(const ModelSpec& spec) {
  const Dialect& dialect = find_dialect(spec.config, "hf");
  weights_of(spec.config).require_plain(dialect, spec.config);
  hf_preprocessor_text(spec);
}

Converted convert_model(const std::string& source, const std::string& arch,
                        const std::string& target, const std::string& dialect_name,
                        const InBytes& in_bytes, const Parts& parts) {
  ModelSpec stored = resolve_model(source, arch);
  const Dialect& dialect = find_dialect(stored.config, dialect_name);
  // The weights are written as they are; only transformers can say that images are of another size.
  const StoredSize shown{stored.config.image_h(), stored.config.image_w()};
  const bool resized = stored.stored != StoredSize{} && dialect.name != "hf";
  if (resized) set_image_size(stored, stored.stored.height, stored.stored.width);
  stored.config = stored_config(stored), stored.stored = {};
  const bool texts = has_text_tower(source);
  const bool both = texts && parts.texts && TowerPair::holds_texts(dialect);
  const Format format = format_of(target, dialect, both);
  if (!has_weights(source)) fail_without_weights(source);
  std::error_code none_there;
  if (fs::equivalent(source, target, none_there) ||
      fs::equivalent(weights_path(source), target + "/model.safetensors", none_there) ||
      fs::equivalent(weights_path(source), target + "/open_clip_model.safetensors", none_there))
    fail_usage("{} is the model itself; write the converted one to another place", target);
  const WeightFamily& family = weights_of(stored.config);
  const Checkpoint file(weights_path(source));
  const std::vector<ParamSpec> params = model_params(stored.config);
  file.check(params, stored.config, stored.config.classes() > 0);

  ModelSpec spec = stored;
  if (has_zero_head_bias(file, params, stored.config)) spec.config.set_head_bias(false);
  family.require_plain(dialect, spec.config);
  family.give_biases(dialect, spec.config);
  const auto pair = both ? std::make_unique<const TowerPair>(source, dialect, spec)
                         : std::unique_ptr<TowerPair>();
  Naming naming = naming_for(dialect, spec.config);
  if (pair) naming.prefix = pair->image_prefix();
  const auto decoder = parts.decoder ? std::make_unique<const DecoderCopy>(source, spec, dialect)
                                     : std::unique_ptr<DecoderCopy>();
  if (decoder && dialect.name == "hf") naming.prefix = "vit.";
  const bool own_file = decoder && dialect.name == "timm";
  if (own_file && format != Format::kDirectory)
    fail_usage("{}: timm's names have no decoder; write a directory, which keeps it in {}", target,
               kDecoderFile);
  StoredTensors written(spec.config, naming);
  std::vector<QuantizedLayer> layers =
      add_params({file, params, stored.config}, spec, in_bytes, parts.eight_bits, written);
  std::vector<NamedTensor> tensors = written.all();
  if (pair) tensors.insert(tensors.end(), pair->tensors().begin(), pair->tensors().end());
  if (decoder && !own_file)
    tensors.insert(tensors.end(), decoder->tensors().begin(), decoder->tensors().end());
  std::vector<BesideTensor> beside = family.beside(dialect, spec.config);
  for (BesideTensor& t : beside)
    tensors.push_back({t.name, {t.values.data(), t.shape, DType::kF32}});
  if (format != Format::kPth) add_counters(tensors);  // loading a .pth does without them
  std::string not_finite = file.not_finite(params, stored.config);
  if (pair && not_finite.empty()) not_finite = pair->not_finite();
  const auto verify = [&] {
    file.check_intact();
    if (pair) pair->check_intact();
    if (decoder) decoder->check_intact();
  };
  switch (format) {
    case Format::kDirectory:
      write_directory(target, dialect.name, spec, pair.get(), decoder.get(), tensors,
                      in_bytes ? std::optional(float_layers(tensors)) : std::nullopt,
                      parts.eight_bits, verify);
      break;
    case Format::kSafetensors:
      write_safetensors(target, tensors, {{"format", "pt"}}, verify);
      break;
    case Format::kPth: write_pth(target, tensors, verify); break;
    case Format::kNpz: write_npz(target, tensors, verify); break;
  }
  const bool says_so =
      format == Format::kDirectory &&
      (pair ? pair->says_eps(spec) : dialect.name == "hf" || family.write_timm(spec).says_eps);
  Converted result{static_cast<int64_t>(tensors.size()), 0, std::move(layers),
                   family.notes(dialect, spec.config, says_so)};
  if (resized)
    result.notes.push_back(fmt::format(
        "{} shows the model images of {} x {}, its weights are of {} x {}: so is what is written",
        source, shown.height, shown.width, spec.config.image_h(), spec.config.image_w()));
  if (texts && !pair)
    result.notes.push_back(fmt::format("{} has a text tower, too, which is not written", source));
  if (pair) std::ranges::copy(pair->notes(), std::back_inserter(result.notes));
  if (!not_finite.empty())
    result.notes.push_back(
        fmt::format("weights '{}': {} holds NaN or infinite numbers; they are written as they are",
                    source, not_finite));
  for (const NamedTensor& t : tensors) result.bytes += static_cast<int64_t>(t.tensor.bytes());
  return result;
}

}  // namespace vitrum
