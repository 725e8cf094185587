// Tensors of other libraries, on the host or on a card.
#include <algorithm>
#include <cstring>
#include <optional>

#include "vitrum/c/model.h"
#include "vitrum/c/structs.h"
#include "vitrum/core/all_finite.h"
#include "vitrum/core/checked.h"
#include "vitrum/core/join.h"
#include "vitrum/runtime/device_copy.h"

namespace vitrum::c {
namespace {

constexpr int32_t kCpu = 1, kCuda = 2, kPinned = 3;  // DLPack's numbers
constexpr uint8_t kUnsigned = 1, kFloat = 2;

std::string type_name(const vitrum_tensor& t) {
  const char* const codes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string code = t.type_code < std::size(codes) ? codes[t.type_code] : "type";
  return fmt::format("{}{}{}", code, t.type_bits,
                     t.type_lanes == 1 ? "" : fmt::format("x{}", t.type_lanes));
}

// A caller's tensor that was looked at.
class Tensor {
 public:
  Tensor(const vitrum_tensor& given_tensor, const char* name) : name_(name) {
    adopt(t_, &given_tensor, given_tensor.size, sizeof t_, "vitrum_tensor");
    if (t_.device_type != kCpu && t_.device_type != kCuda && t_.device_type != kPinned)
      fail_usage("{}: device_type is {}; expected 1 (CPU), 2 (CUDA) or 3 (pinned)", name,
                 t_.device_type);
    if (t_.ndim < 1 || t_.ndim > 8) fail_usage("{}: ndim is {}; expected 1 to 8", name, t_.ndim);
    if (!t_.shape) fail_usage("{}: shape is NULL", name);
    if (t_.byte_offset > PTRDIFF_MAX)
      fail_usage("{}: a byte_offset of {} leaves memory", name, t_.byte_offset);
  }

  bool on_card() const { return t_.device_type == kCuda; }
  void* stream() const { return t_.stream; }
  std::byte* data() const { return static_cast<std::byte*>(t_.data) + t_.byte_offset; }
  int64_t images() const { return t_.shape[0]; }
  DType dtype() const { return t_.type_code == kFloat ? DType::kF32 : DType::kU8; }

  void require_type(bool pixels_too) const {
    const bool f32 = t_.type_code == kFloat && t_.type_bits == 32 && t_.type_lanes == 1;
    const bool u8 = t_.type_code == kUnsigned && t_.type_bits == 8 && t_.type_lanes == 1;
    if (!f32 && !(pixels_too && u8))
      fail_usage("{} of type {}; expected float32{}", name_, type_name(t_),
                 pixels_too ? " (normalised) or uint8 (pixels)" : "");
  }
  void require_shape(std::span<const int64_t> shape) const {
    const std::span found(t_.shape, static_cast<size_t>(t_.ndim));
    if (!std::ranges::equal(found, shape))
      fail_usage("{} of shape ({}); expected ({})", name_, join(found, ", "), join(shape, ", "));
    if (images() > 0 && !t_.data) fail_usage("{}: data is NULL", name_);
  }
  // Rows lie one behind the other.
  bool contiguous() const {
    if (!t_.strides) return true;
    int64_t expected = 1;
    for (int i = t_.ndim; i-- > 0; expected *= t_.shape[i])
      if (t_.shape[i] > 1 && t_.strides[i] != expected) return false;
    return true;
  }
  void require_contiguous() const {
    if (!contiguous()) fail_usage("{}: strides; expected rows one behind the other", name_);
  }
  void require_reachable() const {
    if (contiguous()) return;
    if (on_card()) fail_usage("{}: strides on a card; make the tensor contiguous first", name_);
    int64_t last = 0;
    for (int i = 0; i < t_.ndim; ++i) {
      if (t_.strides[i] < 0) fail_usage("{}: a stride of {}; copy it first", name_, t_.strides[i]);
      last = capped_add(last, capped_mul(std::max<int64_t>(t_.shape[i] - 1, 0), t_.strides[i]));
    }
    if (last > PTRDIFF_MAX / 8) fail_usage("{}: strides that leave memory", name_);
  }
  // The i-th image of (N, C, H, W), row by row.
  template <class T>
  void gather(int64_t i, T* to) const {
    const auto* base = reinterpret_cast<const T*>(data()) + i * t_.strides[0];
    for (int64_t c = 0; c < t_.shape[1]; ++c)
      for (int64_t y = 0; y < t_.shape[2]; ++y) {
        const T* row = base + c * t_.strides[1] + y * t_.strides[2];
        for (int64_t x = 0; x < t_.shape[3]; ++x) *to++ = row[x * t_.strides[3]];
      }
  }

 private:
  vitrum_tensor t_ = VITRUM_TENSOR_INIT;
  const char* name_;
};

class TensorRun {
 public:
  TensorRun(vitrum_model& model, const vitrum_tensor& images, const vitrum_tensor* logits,
            const vitrum_tensor* features)
      : predictor_(*model.predictor), images_(images, "images") {
    images_.require_type(/*pixels_too=*/true);
    const ModelConfig& c = predictor_.model().config;
    const int64_t n = images_.images();
    image_bytes_ =
        static_cast<size_t>(c.channels() * c.image_h() * c.image_w()) * size_of(images_.dtype());
    const int64_t most = PTRDIFF_MAX / 8 / static_cast<int64_t>(image_bytes_);
    if (n < 0 || n > most) fail_usage("images: {} of them; expected 0 to {}", n, most);
    images_.require_shape(std::array{n, c.channels(), c.image_h(), c.image_w()});
    images_.require_reachable();
    if (logits && predictor_.classes() == 0)
      fail_usage("{} has no head to classify with; ask for features",
                 predictor_.model().architecture);
    logits_ = output(logits, "logits", predictor_.classes());
    features_ = output(features, "features", predictor_.dimension());
  }

  void run() {
    const auto stage =
        images_.dtype() == DType::kF32 ? InputStage::kNormalized : InputStage::kPixels;
    const auto count = static_cast<size_t>(images_.images());
    predictor_.run_batches(
        stage, count, [&](ModelProgram& program, size_t first) { fill(program, first); },
        [&](ModelProgram& program, size_t first) { read(program, first); });
  }

 private:
  std::optional<Tensor> output(const vitrum_tensor* out, const char* name, int64_t width) const {
    if (!out) return {};
    Tensor tensor(*out, name);
    tensor.require_type(/*pixels_too=*/false);
    tensor.require_shape(std::array{images_.images(), width});
    tensor.require_contiguous();
    return tensor;
  }

  void fill(ModelProgram& program, size_t first) {
    const auto batch = static_cast<size_t>(program.batch());
    const std::byte* from = images_.data() + first * image_bytes_;
    if (images_.on_card())
      return copy_on_device(predictor_.device().backend(), program.pixels().data, from,
                            batch * image_bytes_, images_.stream());
    const bool floats = images_.dtype() == DType::kF32;
    if (!images_.contiguous()) {
      gathered_.resize(batch * image_bytes_);
      for (size_t k = 0; k < batch; ++k) {
        std::byte* to = gathered_.data() + k * image_bytes_;
        const auto i = static_cast<int64_t>(first + k);
        floats ? images_.gather(i, reinterpret_cast<float*>(to))
               : images_.gather(i, reinterpret_cast<uint8_t*>(to));
      }
      from = gathered_.data();
    }
    if (floats &&
        !all_finite({reinterpret_cast<const float*>(from), batch * image_bytes_ / sizeof(float)}))
      fail_input("images hold NaN or infinity");
    program.upload(from);
  }

  // Answers are looked at on the host in any case.
  void read(ModelProgram& program, size_t first) {
    const auto batch = static_cast<size_t>(program.batch());
    const bool from_head = predictor_.classes() > 0;
    answers_.resize(batch *
                    static_cast<size_t>(from_head ? predictor_.classes() : predictor_.dimension()));
    from_head ? program.read_logits(answers_.data()) : program.read_features(answers_.data());
    predictor_.check_answer(answers_);
    if (logits_) give(*logits_, program.logits(), first);
    if (features_) give(*features_, program.features(), first);
  }

  void give(const Tensor& to, const TensorView& from, size_t first) {
    Backend& backend = predictor_.device().backend();
    std::byte* at = to.data() + first * (from.bytes() / static_cast<size_t>(from.shape[0]));
    if (!to.on_card()) return backend.download(at, from);
    copy_on_device(backend, at, from.data, from.bytes(), to.stream());
    backend.wait();
  }

  Predictor& predictor_;
  Tensor images_;
  size_t image_bytes_ = 0;
  std::optional<Tensor> logits_, features_;
  std::vector<std::byte> gathered_;
  std::vector<float> answers_;
};

}  // namespace
}  // namespace vitrum::c

using namespace vitrum::c;

vitrum_status vitrum_predict_tensor(vitrum_model* model, const vitrum_tensor* images,
                                    vitrum_tensor* logits, vitrum_tensor* features) {
  return guarded(
      [&] { TensorRun(usable(model), given(images, "images"), logits, features).run(); });
}
