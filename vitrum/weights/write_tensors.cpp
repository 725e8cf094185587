#include "vitrum/weights/write_tensors.h"

#include <array>
#include <cassert>

#include "vitrum/weights/npy.h"
#include "vitrum/weights/zip_write.h"

namespace vitrum {
namespace {

ZipWriter::Bytes bytes_of(const TensorView& t) {
  return {static_cast<const std::byte*>(t.data), t.bytes()};
}

const char* torch_storage(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "FloatStorage";
    case DType::kF64: return "DoubleStorage";
    case DType::kF16: return "HalfStorage";
    case DType::kBF16: return "BFloat16Storage";
    default: break;
  }
  assert(false);
  return "";
}

// Pickle, protocol 2: just what a dictionary of tensors needs.
class PickleText {
 public:
  PickleText() : text_("\x80\x02}(") {}  // an empty dictionary, and items for it

  void tensor(const NamedTensor& t, size_t index) {
    string(t.name);
    global("torch._utils", "_rebuild_tensor_v2");
    text_ += '(';
    text_ += '(';  // the storage, by its member's name
    string("storage");
    global("torch", torch_storage(t.tensor.dtype));
    string(std::to_string(index)), string("cpu"), integer(t.tensor.shape.numel());
    text_ += "tQ";
    integer(0);  // offset
    tuple(t.tensor.shape);
    tuple(strides(t.tensor.shape));
    text_ += '\x89';  // requires no gradient
    global("collections", "OrderedDict");
    text_ += ")R";  // and has no hooks
    text_ += "tR";
  }

  std::string finished() const { return text_ + "u."; }

 private:
  static Shape strides(const Shape& shape) {
    std::array<int64_t, Shape::kMaxRank> all{};
    int64_t step = 1;
    for (int i = shape.rank(); i-- > 0; step *= shape[i]) all[static_cast<size_t>(i)] = step;
    Shape result;
    for (int i = 0; i < shape.rank(); ++i) result.append(all[static_cast<size_t>(i)]);
    return result;
  }

  void number(int64_t x, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(x >> (8 * i));
  }
  void integer(int64_t x) {
    const bool small = x <= INT32_MAX;
    text_ += small ? "J" : "\x8a\x08";
    number(x, small ? 4 : 8);
  }
  void string(std::string_view s) {
    text_ += 'X';
    number(static_cast<int64_t>(s.size()), 4);
    text_ += s;
  }
  void global(std::string_view module, std::string_view name) {
    text_.append("c").append(module).append("\n").append(name).append("\n");
  }
  void tuple(const Shape& numbers) {
    text_ += '(';
    for (const int64_t n : numbers) integer(n);
    text_ += 't';
  }

  std::string text_;
};

}  // namespace

void add_counters(std::vector<NamedTensor>& tensors) {
  static int64_t zero = 0;
  constexpr std::string_view kMean = "running_mean";
  for (size_t i = 0, n = tensors.size(); i < n; ++i) {
    std::string name = tensors[i].name;
    if (!name.ends_with(kMean)) continue;
    name.replace(name.size() - kMean.size(), kMean.size(), "num_batches_tracked");
    tensors.push_back({std::move(name), {&zero, {}, DType::kI64}});
  }
}

void write_pth(const std::string& path, std::span<const NamedTensor> tensors,
               const std::function<void()>& verify) {
  PickleText pickle;
  for (size_t i = 0; i < tensors.size(); ++i) pickle.tensor(tensors[i], i);
  ZipWriter zip(path);
  zip.add("archive/data.pkl", pickle.finished());
  zip.add("archive/byteorder", "little");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ZipWriter::Bytes bytes = bytes_of(tensors[i].tensor);
    zip.add("archive/data/" + std::to_string(i), std::span(&bytes, 1));
  }
  zip.add("archive/version", "3\n");
  verify();
  zip.commit();
}

void write_npz(const std::string& path, std::span<const NamedTensor> tensors,
               const std::function<void()>& verify) {
  ZipWriter zip(path);
  for (const NamedTensor& t : tensors) {
    const std::string head = npy_preamble(t.tensor.dtype, t.tensor.shape);
    const std::array<ZipWriter::Bytes, 2> parts = {std::as_bytes(std::span(head)),
                                                   bytes_of(t.tensor)};
    zip.add(t.name + ".npy", parts);
  }
  verify();
  zip.commit();
}

}  // namespace vitrum
