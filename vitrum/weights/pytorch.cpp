#include "vitrum/weights/pytorch.h"

#include <algorithm>
#include <cstring>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kPickle = "data.pkl";
constexpr int kMaxNesting = 3;  // containers in containers

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_pickle_of(std::string_view name) {
  return name == kPickle ||
         (name.ends_with(kPickle) && name[name.size() - kPickle.size() - 1] == '/');
}

// All members share the name of the archive's one folder: "archive/" or the file's own name.
const ZipFile::Member& pickle_member(const ZipFile& zip) {
  const ZipFile::Member* found = nullptr;
  for (const ZipFile::Member& member : zip.members()) {
    if (!is_pickle_of(member.name)) continue;
    if (found) fail_input("'{}' has more than one {}", zip.path(), kPickle);
    found = &member;
  }
  if (found->deflated)
    fail_input("'{}': {} is compressed; save it again with torch.save", zip.path(), kPickle);
  return *found;
}

void refuse_other_flavours(const ZipFile& zip, const std::string& prefix) {
  if (const auto* order = zip.find(prefix + "byteorder"); order && text_of(order->data) != "little")
    fail_input("'{}' is big-endian; save it again on a little-endian machine", zip.path());
  for (const char* script : {"code/", "constants.pkl"})
    for (const ZipFile::Member& member : zip.members())
      if (member.name.starts_with(prefix + script))
        fail_input(
            "'{}' is a TorchScript archive; save the weights alone: "
            "torch.save(model.state_dict(), ...)",
            zip.path());
}

bool has_tensor(const Pickle& pickle, const PickleValue& dict) {
  for (size_t i = 1; i < dict.items.size(); i += 2)
    if (pickle[dict.items[i]].kind == Kind::kTensor) return true;
  return false;
}

const PickleValue* entry(const Pickle& pickle, const PickleValue& dict, std::string_view name) {
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue &key = pickle[dict.items[i]], &value = pickle[dict.items[i + 1]];
    if (key.kind == Kind::kString && key.text == name && value.kind == Kind::kDict) return &value;
  }
  return nullptr;
}

const PickleValue& state_dict(const Pickle& pickle, const std::string& path) {
  const PickleValue* dict = &pickle.root();
  for (int depth = 0; depth <= kMaxNesting && dict && dict->kind == Kind::kDict; ++depth) {
    if (has_tensor(pickle, *dict)) return *dict;
    const PickleValue* inner = nullptr;
    for (const std::string_view name : PyTorchFile::kContainers)
      if (!inner) inner = entry(pickle, *dict, name);
    dict = inner;
  }
  fail_input("'{}' holds no dictionary of tensors; save torch.save(model.state_dict(), ...)", path);
}

bool is_c_order(const Shape& shape, const Shape& strides) {
  const Shape expected = c_strides(shape);
  for (int i = 0; i < shape.rank(); ++i)
    if (shape[i] > 1 && strides[i] != expected[i]) return false;
  return true;
}

template <class T>
TensorBytes widened(const TensorBytes& narrow) {
  const size_t count = narrow.size() / sizeof(T);
  TensorBytes wide(count * sizeof(int32_t));
  for (size_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, narrow.data() + i * sizeof x, sizeof x);
    const int32_t y = x;
    std::memcpy(wide.data() + i * sizeof y, &y, sizeof y);
  }
  return wide;
}

}  // namespace

bool PyTorchFile::recognizes(const ZipFile& zip) {
  return std::ranges::any_of(zip.members(), is_pickle_of, &ZipFile::Member::name);
}

PyTorchFile::PyTorchFile(ZipFile zip) : zip_(std::move(zip)) {
  const ZipFile::Member& member = pickle_member(zip_);
  const std::string prefix(member.name.substr(0, member.name.size() - kPickle.size()));
  refuse_other_flavours(zip_, prefix);
  const Pickle pickle(text_of(member.data), fmt::format("'{}'", path()));
  const PickleValue& dict = state_dict(pickle, path());
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue &name = pickle[dict.items[i]], &value = pickle[dict.items[i + 1]];
    if (value.kind == Kind::kTensor && name.kind == Kind::kString) add(prefix, pickle, name, value);
  }
  index_names();
}

void PyTorchFile::add(const std::string& prefix, const Pickle& pickle, const PickleValue& name,
                      const PickleValue& tensor) {
  const std::string who = fmt::format("'{}': tensor {}", path(), shown_name(name.text));
  if (tensors_.size() == kMaxTensors)
    fail_input("'{}' has more than {} tensors", path(), kMaxTensors);
  if (name.text.size() > kMaxName) fail_input("{} has a name of {} bytes", who, name.text.size());
  const PickleValue &stored = pickle[tensor.items[0]], &offset = pickle[tensor.items[1]];
  const Shape shape = numbers(pickle, pickle[tensor.items[2]], who),
              strides = numbers(pickle, pickle[tensor.items[3]], who);
  TorchElements elements = kTorchGlobals[stored.global].elements;
  if (tensor.items.size() > 4) {
    const PickleValue& type = pickle[tensor.items[4]];
    if (type.kind != Kind::kGlobal || kTorchGlobals[type.global].role != TorchRole::kElements)
      fail_input("{} has no known dtype", who);
    elements = kTorchGlobals[type.global].elements;
  }
  const auto data = storage(prefix, stored, who);
  const auto available = static_cast<int64_t>(data.size() / size_of(elements));

  // The last element's place, and how many there are; both are within the storage or it is refused.
  int64_t count = 1, last = offset.number;
  bool fits = offset.kind == Kind::kNumber && last >= 0 && shape.rank() == strides.rank();
  for (int i = 0; fits && i < shape.rank(); ++i) {
    int64_t reach = 0;
    fits = !__builtin_mul_overflow(std::max<int64_t>(shape[i] - 1, 0), strides[i], &reach) &&
           !__builtin_add_overflow(last, reach, &last) &&
           !__builtin_mul_overflow(count, std::max<int64_t>(shape[i], 1), &count);
  }
  const bool empty = fits && shape.numel() == 0;
  if (!fits || (!empty && last >= available))
    fail_input("{} of shape {} reaches beyond its storage of {} elements", who, shape.str(),
               available);
  if (!empty && count > available)
    fail_input("{} repeats the elements of its storage; save tensor.contiguous()", who);

  const DType dtype = dtype_of(elements);
  const bool same_type = size_of(dtype) == size_of(elements);
  const auto start = empty ? 0 : static_cast<size_t>(offset.number) * size_of(elements);
  tensors_.push_back({std::string(name.text), dtype, shape, layouts_.size(),
                      static_cast<size_t>(shape.numel()) * size_of(dtype)});
  layouts_.push_back(
      {data.subspan(start), strides, elements, same_type && (empty || is_c_order(shape, strides))});
}

Shape PyTorchFile::numbers(const Pickle& pickle, const PickleValue& tuple,
                           const std::string& who) const {
  if (tuple.kind != Kind::kTuple) fail_input("{} has no shape", who);
  if (tuple.items.size() > Shape::kMaxRank)
    fail_input("{} has {} dimensions, more than {}", who, tuple.items.size(), Shape::kMaxRank);
  Shape shape;
  for (const uint32_t item : tuple.items) {
    if (pickle[item].kind != Kind::kNumber || pickle[item].number < 0)
      fail_input("{} has a dimension or stride that is no natural number", who);
    shape.append(pickle[item].number);
  }
  return shape;
}

std::span<const std::byte> PyTorchFile::storage(const std::string& prefix,
                                                const PickleValue& storage,
                                                const std::string& who) const {
  const size_t element_size = size_of(kTorchGlobals[storage.global].elements);
  const auto* member = zip_.find(fmt::format("{}data/{}", prefix, storage.text));
  if (!member) fail_input("{} has no storage {} in the file", who, shown_name(storage.text));
  if (member->deflated)
    fail_input("{}: its storage is compressed; save it again with torch.save", who);
  if (storage.number < 0 || member->size % element_size != 0 ||
      static_cast<uint64_t>(storage.number) != member->size / element_size)
    fail_input("{}: its storage of {} elements has {} bytes in the file", who, storage.number,
               member->size);
  return member->data;
}

std::span<const std::byte> PyTorchFile::bytes(const TensorInfo& tensor) const {
  const Layout& layout = layouts_[tensor.offset];
  if (layout.in_place) return layout.from.first(tensor.bytes);
  return gathered_.get(tensor.offset, [&] {
    TensorBytes bytes =
        gather(layout.from.data(), tensor.shape, layout.strides, size_of(layout.elements));
    if (layout.elements == TorchElements::kI16) return widened<int16_t>(bytes);
    if (layout.elements == TorchElements::kI8) return widened<int8_t>(bytes);
    return bytes;
  });
}

}  // namespace vitrum
