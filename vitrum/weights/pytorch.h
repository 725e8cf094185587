// PyTorch's .pth, .pt and .bin files: a zip archive with a pickle that describes the tensors and
// one member for each storage. Tensors in C order are read from the mapped file.
//
// Which tensors: those of the pickled dictionary itself; where it holds none, those of its first
// entry with one of the names in kContainers. Names are kept as they are, and entries that are no
// tensors (epoch, args, optimizer) are passed over.
#pragma once
#include "vitrum/weights/gathered.h"
#include "vitrum/weights/pickle.h"
#include "vitrum/weights/tensor_source.h"
#include "vitrum/weights/zip.h"

namespace vitrum {

class PyTorchFile final : public TensorSource {
 public:
  static constexpr size_t kMaxTensors = 65'536;
  static constexpr size_t kMaxName = 512;  // bytes
  // In this order: trained weights before averaged ones.
  static constexpr std::array<std::string_view, 9> kContainers = {
      "model",   "state_dict", "model_state_dict", "module",        "teacher",
      "student", "network",    "model_ema",        "state_dict_ema"};

  static bool recognizes(const ZipFile& zip);
  explicit PyTorchFile(ZipFile zip);

  const std::string& path() const override { return zip_.path(); }
  void check_intact() const override { zip_.check_intact(); }
  std::span<const std::byte> bytes(const TensorInfo& tensor) const override;

 private:
  struct Layout {
    std::span<const std::byte> from;  // from the first element on
    Shape strides;                    // in elements
    TorchElements elements;
    bool in_place;  // in C order, of a type we have
  };

  void add(const std::string& prefix, const Pickle& pickle, const PickleValue& name,
           const PickleValue& tensor);
  Shape numbers(const Pickle& pickle, const PickleValue& tuple, const std::string& who) const;
  std::span<const std::byte> storage(const std::string& prefix, const PickleValue& storage,
                                     const std::string& who) const;

  ZipFile zip_;
  std::vector<Layout> layouts_;  // of tensors_[i], whose offset is i
  mutable GatheredTensors gathered_;
};

}  // namespace vitrum
