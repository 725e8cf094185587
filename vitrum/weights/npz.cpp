#include "vitrum/weights/npz.h"

#include <algorithm>

#include "vitrum/core/checked.h"
#include "vitrum/core/error.h"

namespace vitrum {
namespace {

constexpr std::string_view kSuffix = ".npy";

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool NpzFile::recognizes(const ZipFile& zip) {
  return std::ranges::any_of(zip.members(),
                             [](const auto& member) { return member.name.ends_with(kSuffix); });
}

NpzFile::NpzFile(ZipFile zip) : zip_(std::move(zip)) {
  if (zip_.members().size() > kMaxArrays)
    fail_input("'{}' has {} arrays; at most {} are read", path(), zip_.members().size(),
               kMaxArrays);
  uint64_t inflated = 0;
  for (const ZipFile::Member& member : zip_.members()) {
    const NpyHeader header = read_header(member);
    if (member.deflated) inflated = capped_add<uint64_t>(inflated, header.data_bytes);
    std::string name(member.name.substr(0, member.name.size() - kSuffix.size()));
    tensors_.push_back(
        {std::move(name), header.dtype, header.shape, arrays_.size(), header.data_bytes});
    arrays_.push_back({&member, header});
  }
  if (inflated > capped_add<size_t>(capped_mul<size_t>(kMaxGrowth, zip_.file_size()), 32 << 20))
    fail_input("'{}' would grow from {} to {} bytes: that is no compressed checkpoint", path(),
               zip_.file_size(), inflated);
  index_names();
}

NpyHeader NpzFile::read_header(const ZipFile::Member& member) const {
  const std::string who = fmt::format("'{}': array {}", path(), shown_name(member.name));
  if (!member.name.ends_with(kSuffix)) fail_input("{} is no .npy array", who);
  TensorBytes start;
  if (member.deflated) {
    start.resize(std::min<uint64_t>(member.size, kMaxNpyHeader));
    zip_.inflate(member, start, false);
  }
  const NpyHeader header = parse_npy_header(text_of(member.deflated ? start : member.data), who);
  if (member.size - header.data_start != header.data_bytes)
    fail_input("{} has {} bytes of data, its shape {} needs {}", who,
               member.size - header.data_start, header.shape.str(), header.data_bytes);
  return header;
}

TensorBytes NpzFile::inflate(const Array& array) const {
  TensorBytes all(array.member->size);
  zip_.inflate(*array.member, all, true);
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(array.header.data_start));
  return all;
}

std::span<const std::byte> NpzFile::bytes(const TensorInfo& tensor) const {
  const Array& array = arrays_[tensor.offset];
  const NpyHeader& header = array.header;
  const bool deflated = array.member->deflated;
  const bool reorder = header.fortran_order && header.shape.rank() > 1;
  const auto stored = [&] { return array.member->data.subspan(header.data_start); };
  if (!deflated && !reorder) return stored();
  return gathered_.get(tensor.offset, [&] {
    TensorBytes data;
    if (deflated) data = inflate(array);
    if (!reorder) return data;
    return gather(deflated ? data.data() : stored().data(), header.shape,
                  fortran_strides(header.shape), size_of(header.dtype));
  });
}

}  // namespace vitrum
