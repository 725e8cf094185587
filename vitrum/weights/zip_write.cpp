#include "vitrum/weights/zip_write.h"

#include <zlib.h>

#include <array>
#include <bit>

namespace vitrum {
namespace {

static_assert(std::endian::native == std::endian::little, "zip fields are little-endian");

constexpr uint64_t kLong32 = 0xffffffff, kLong16 = 0xffff;  // "see the zip64 field"
constexpr uint16_t kVersion = 20, kVersionZip64 = 45;
constexpr uint16_t kFirstOfJanuary1980 = 0x21;
constexpr uint16_t kZip64Field = 1, kPaddingField = 0x4246;  // the latter is PyTorch's
constexpr uint64_t kAlign = 64;

template <class T>
void put(std::string& out, T x) {
  out.append(reinterpret_cast<const char*>(&x), sizeof x);
}
void put16(std::string& out, uint64_t x) { put(out, static_cast<uint16_t>(x)); }
void put32(std::string& out, uint64_t x) { put(out, static_cast<uint32_t>(x)); }
void put64(std::string& out, uint64_t x) { put(out, x); }

uint32_t crc_of(std::span<const ZipWriter::Bytes> parts) {
  uLong crc = crc32_z(0, nullptr, 0);
  for (const auto& part : parts)
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
  return static_cast<uint32_t>(crc);
}

// Fields that local headers and the directory share, up to the name's length.
void put_common(std::string& out, bool zip64, uint32_t crc, uint64_t size, size_t name) {
  put16(out, zip64 ? kVersionZip64 : kVersion);
  put16(out, 0);  // flags
  put16(out, 0);  // stored
  put16(out, 0);  // midnight
  put16(out, kFirstOfJanuary1980);
  put32(out, crc);
  put32(out, zip64 ? kLong32 : size);  // compressed
  put32(out, zip64 ? kLong32 : size);
  put16(out, name);
}

}  // namespace

void ZipWriter::write(std::string_view bytes) {
  file_.write(bytes);
  position_ += bytes.size();
}

void ZipWriter::add(std::string_view name, std::span<const Bytes> parts) {
  uint64_t size = 0;
  for (const Bytes& part : parts) size += part.size();
  const Entry entry{std::string(name), crc_of(parts), size, position_};
  const bool zip64 = zip64_ || size >= kLong32;
  std::string extra;
  if (zip64) {
    put16(extra, kZip64Field), put16(extra, 16);
    put64(extra, size), put64(extra, size);
  }
  constexpr uint64_t kHeader = 30, kFieldHeader = 4;
  const uint64_t unpadded = position_ + kHeader + name.size() + extra.size() + kFieldHeader;
  const uint64_t padding = (kAlign - unpadded % kAlign) % kAlign;
  put16(extra, kPaddingField), put16(extra, padding);
  extra.append(padding, 'Z');

  std::string header;
  put32(header, 0x04034b50);
  put_common(header, zip64, entry.crc, size, name.size());
  put16(header, extra.size());
  write(header.append(name).append(extra));
  for (const Bytes& part : parts) write({reinterpret_cast<const char*>(part.data()), part.size()});
  entries_.push_back(entry);
}

void ZipWriter::add(std::string_view name, std::string_view text) {
  const Bytes bytes = std::as_bytes(std::span(text));
  add(name, std::span(&bytes, 1));
}

void ZipWriter::commit() {
  const uint64_t start = position_;
  for (const Entry& e : entries_) {
    const bool zip64 = zip64_ || e.size >= kLong32 || e.offset >= kLong32;
    std::string record;
    put32(record, 0x02014b50);
    put16(record, zip64 ? kVersionZip64 : kVersion);  // made by
    put_common(record, zip64, e.crc, e.size, e.name.size());
    put16(record, zip64 ? 28 : 0);       // extra field
    put16(record, 0), put16(record, 0);  // comment, disk
    put16(record, 0), put32(record, 0);  // attributes
    put32(record, zip64 ? kLong32 : e.offset);
    record += e.name;
    if (zip64) {
      put16(record, kZip64Field), put16(record, 24);
      put64(record, e.size), put64(record, e.size), put64(record, e.offset);
    }
    write(record);
  }
  const uint64_t size = position_ - start, count = entries_.size(), end = position_;
  std::string tail;
  const bool zip64 = zip64_ || count >= kLong16 || size >= kLong32 || start >= kLong32;
  if (zip64) {
    put32(tail, 0x06064b50), put64(tail, 44);  // bytes that follow
    put16(tail, kVersionZip64), put16(tail, kVersionZip64);
    put32(tail, 0), put32(tail, 0);  // disks
    put64(tail, count), put64(tail, count), put64(tail, size), put64(tail, start);
    put32(tail, 0x07064b50), put32(tail, 0), put64(tail, end), put32(tail, 1);
  }
  put32(tail, 0x06054b50);
  put16(tail, 0), put16(tail, 0);  // disks
  put16(tail, zip64 ? kLong16 : count), put16(tail, zip64 ? kLong16 : count);
  put32(tail, zip64 ? kLong32 : size), put32(tail, zip64 ? kLong32 : start);
  put16(tail, 0);  // comment
  write(tail);
  file_.commit();
}

}  // namespace vitrum
