#include "vitrum/weights/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {
namespace {

// Fixed parts of the records of the format (APPNOTE.TXT), in bytes.
constexpr size_t kLocal = 30, kCentral = 46, kEnd = 22, kEnd64Locator = 20, kEnd64 = 56;
constexpr uint32_t kLocalMagic = 0x04034b50, kCentralMagic = 0x02014b50, kEndMagic = 0x06054b50,
                   kEnd64LocatorMagic = 0x07064b50, kEnd64Magic = 0x06064b50;
constexpr uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1, kZip64Field = 1;

// The 64-bit values of an entry's zip64 field, which holds only those that did not fit below.
class Zip64Field {
 public:
  explicit Zip64Field(std::string_view extra) {
    while (extra.size() >= 4) {
      const auto id = take<uint16_t>(extra), length = take<uint16_t>(extra);
      const std::string_view body = extra.substr(0, length);
      extra.remove_prefix(body.size());
      if (id == kZip64Field) values_ = body;
    }
  }
  // `value`, or the next of the field where `value` says so; nothing where it is missing.
  std::optional<uint64_t> widen(uint32_t value) {
    if (value != UINT32_MAX) return value;
    if (values_.size() < 8) return std::nullopt;
    return take<uint64_t>(values_);
  }

 private:
  template <class T>
  static T take(std::string_view& from) {
    T x;
    std::memcpy(&x, from.data(), sizeof x);
    from.remove_prefix(sizeof x);
    return x;
  }
  std::string_view values_;
};

}  // namespace

template <class T>
T ZipFile::number(size_t at) const {
  T x;
  std::memcpy(&x, file_.bytes().data() + at, sizeof x);
  return x;
}

std::string_view ZipFile::text(size_t at, size_t length) const {
  return {reinterpret_cast<const char*>(file_.bytes().data()) + at, length};
}

ZipFile::ZipFile(const std::string& path) : file_(path) {
  const Directory directory = find_directory();
  if (directory.offset > file_.size() || directory.bytes > file_.size() - directory.offset)
    fail_input("'{}' is a broken zip archive: its directory is outside the file", path);
  if (directory.count > kMaxMembers || directory.count > directory.bytes / kCentral)
    fail_input("'{}' is a broken zip archive: {} members in a directory of {} bytes (at most {})",
               path, directory.count, directory.bytes, kMaxMembers);
  const size_t end = directory.offset + directory.bytes;
  std::vector<std::pair<size_t, size_t>> extents;  // begin and end of each member with its header
  size_t at = directory.offset;
  for (uint64_t i = 0; i < directory.count; ++i) at = read_member(at, end, extents);
  std::ranges::sort(extents);
  extents.emplace_back(directory.offset, 0);
  for (size_t i = 1; i < extents.size(); ++i)
    if (extents[i].first < extents[i - 1].second)
      fail_input("'{}' is a broken zip archive: members overlap at byte {}", path,
                 extents[i].first);
  std::ranges::sort(members_, {}, &Member::name);
  const auto twice = std::ranges::adjacent_find(members_, {}, &Member::name);
  if (twice != members_.end())
    fail_input("'{}' is a broken zip archive: it has the member {} twice", path,
               shown_name(twice->name));
}

// The end record stands at the end, before a comment of up to 64 KB. One whose comment does not
// reach exactly to the end of the file is a coincidence.
ZipFile::Directory ZipFile::find_directory() const {
  const size_t size = file_.size();
  for (size_t comment = 0; comment <= UINT16_MAX && size >= kEnd + comment; ++comment) {
    const size_t at = size - kEnd - comment;
    if (number<uint32_t>(at) != kEndMagic || number<uint16_t>(at + 20) != comment) continue;
    if (at >= kEnd64Locator && number<uint32_t>(at - kEnd64Locator) == kEnd64LocatorMagic)
      return zip64_directory(at);
    return {number<uint32_t>(at + 16), number<uint32_t>(at + 12), number<uint16_t>(at + 10)};
  }
  fail_input("'{}' is a zip archive without its directory: it is truncated or damaged", path());
}

ZipFile::Directory ZipFile::zip64_directory(size_t end_record) const {
  const auto at = number<uint64_t>(end_record - kEnd64Locator + 8);
  if (file_.size() < kEnd64 || at > file_.size() - kEnd64 || number<uint32_t>(at) != kEnd64Magic)
    fail_input("'{}' is a broken zip archive: its zip64 record is missing", path());
  return {number<uint64_t>(at + 48), number<uint64_t>(at + 40), number<uint64_t>(at + 32)};
}

// Reads the directory's entry at `at` and checks it against the member's own header; where the next
// entry is.
size_t ZipFile::read_member(size_t at, size_t end,
                            std::vector<std::pair<size_t, size_t>>& extents) {
  if (end - at < kCentral || number<uint32_t>(at) != kCentralMagic)
    fail_input("'{}' is a broken zip archive: entry {} of its directory", path(), members_.size());
  const size_t name_length = number<uint16_t>(at + 28), extra_length = number<uint16_t>(at + 30);
  const size_t next = at + kCentral + name_length + extra_length + number<uint16_t>(at + 32);
  if (next > end)
    fail_input("'{}' is a broken zip archive: entry {} of its directory is cut off", path(),
               members_.size());
  const std::string_view name = text(at + kCentral, name_length);
  const auto refuse = [&](std::string_view why) {
    fail_input("'{}' is a broken zip archive: member {} {}", path(), shown_name(name), why);
  };
  const auto flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10);
  if (flags & kEncrypted) refuse("is encrypted");
  if (method != kStored && method != kDeflated) refuse("is neither stored nor deflated");
  Zip64Field wide(text(at + kCentral + name_length, extra_length));
  const auto size = wide.widen(number<uint32_t>(at + 24));
  const auto packed = wide.widen(number<uint32_t>(at + 20));
  const auto header = wide.widen(number<uint32_t>(at + 42));
  if (!size || !packed || !header) refuse("has no 64-bit size");
  if (*header > file_.size() || file_.size() - *header < kLocal) refuse("is outside the file");
  if (number<uint32_t>(*header) != kLocalMagic) refuse("has no header");
  const uint64_t start =
      *header + kLocal + number<uint16_t>(*header + 26) + number<uint16_t>(*header + 28);
  if (start > file_.size() || *packed > file_.size() - start) refuse("is outside the file");
  if (text(*header + kLocal, number<uint16_t>(*header + 26)) != name)
    refuse("has another name in its own header");
  if (method == kStored && *size != *packed) refuse("is stored, but has two sizes");
  members_.push_back({name, file_.bytes().subspan(start, *packed), *size, method == kDeflated});
  extents.emplace_back(*header, start + *packed);
  return next;
}

const ZipFile::Member* ZipFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(members_, name, {}, &Member::name);
  return at != members_.end() && at->name == name ? &*at : nullptr;
}

void ZipFile::inflate(const Member& member, std::span<std::byte> out, bool whole) const {
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) fail_exhausted("'{}': zlib cannot start", path());
  // zlib counts in 32 bits; both sides are handed over in parts.
  constexpr size_t kPart = size_t{1} << 30;
  std::span<const std::byte> in = member.data;
  size_t done = 0;
  int status = Z_OK;
  std::byte beyond[1];  // takes what should not come
  while (status == Z_OK && (done < out.size() || whole)) {
    const std::span<std::byte> room =
        done < out.size() ? out.subspan(done, std::min(kPart, out.size() - done)) : beyond;
    z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
    z.avail_in = static_cast<uInt>(std::min(kPart, in.size()));
    z.next_out = reinterpret_cast<Bytef*>(room.data());
    z.avail_out = static_cast<uInt>(room.size());
    status = ::inflate(&z, Z_NO_FLUSH);
    in = in.subspan(static_cast<size_t>(z.next_in - reinterpret_cast<const Bytef*>(in.data())));
    done += room.size() - z.avail_out;
    if (done > out.size()) break;
  }
  inflateEnd(&z);
  if (done > out.size() || (done < out.size() || (whole && status != Z_STREAM_END)))
    fail_input("'{}': member {} does not inflate to its {} bytes: it is damaged", path(),
               shown_name(member.name), out.size());
}

}  // namespace vitrum
