#include "vitrum/data/orientation.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace vitrum {
namespace {

using Bytes = std::span<const uint8_t>;

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

// The `count` bytes at `at` as a number; nothing beyond the end.
std::optional<uint32_t> number(Bytes bytes, size_t at, size_t count, bool big_endian) {
  if (at > bytes.size() || count > bytes.size() - at) return std::nullopt;
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i)
    value = value << 8 | bytes[at + (big_endian ? i : count - 1 - i)];
  return value;
}

Bytes part(Bytes bytes, size_t at, size_t count) {
  if (at > bytes.size()) return {};
  return bytes.subspan(at, std::min(count, bytes.size() - at));
}

struct Metadata {
  Bytes exif, xmp;
};

Metadata jpeg_metadata(Bytes bytes) {
  constexpr std::string_view kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
  Metadata found;
  for (size_t at = 2; at + 4 <= bytes.size() && bytes[at] == 0xff;) {
    const uint8_t marker = bytes[at + 1];
    if (marker == 0xff) {  // padding
      ++at;
      continue;
    }
    if (marker == 0xda || marker == 0xd9) break;  // the image itself, or its end
    const size_t length = *number(bytes, at + 2, 2, true);
    const Bytes segment = part(bytes, at + 4, length < 2 ? 0 : length - 2);
    if (marker == 0xe1 && starts_with(segment, {"Exif\0\0", 6}) && found.exif.empty())
      found.exif = segment;
    if (marker == 0xe1 && starts_with(segment, kXmp)) found.xmp = segment.subspan(kXmp.size());
    at += 2 + length;
  }
  return found;
}

Metadata png_metadata(Bytes bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const size_t length = *number(bytes, at, 4, true);
    if (starts_with(bytes.subspan(at + 4), "eXIf")) return {part(bytes, at + 8, length), {}};
    at += 12 + length;
  }
  return {};
}

Metadata webp_metadata(Bytes bytes) {
  Metadata found;
  for (size_t at = 12; at + 8 <= bytes.size();) {
    const size_t length = *number(bytes, at + 4, 4, false);
    const Bytes chunk = part(bytes, at + 8, length);
    if (starts_with(bytes.subspan(at), "EXIF")) found.exif = chunk;
    if (starts_with(bytes.subspan(at), "XMP ")) found.xmp = chunk;
    at += 8 + length + length % 2;
  }
  return found;
}

// A TIFF header and the directory it points to, after an optional "Exif\0\0".
std::optional<int> exif_orientation(Bytes exif) {
  if (starts_with(exif, {"Exif\0\0", 6})) exif = exif.subspan(6);
  const bool big = starts_with(exif, {"MM\0*", 4});
  if (!big && !starts_with(exif, {"II*\0", 4})) return std::nullopt;
  const auto directory = number(exif, 4, 4, big);
  const auto entries = directory ? number(exif, *directory, 2, big) : std::nullopt;
  for (uint32_t i = 0; entries && i < *entries; ++i) {
    const size_t at = size_t{*directory} + 2 + 12 * size_t{i};
    const auto tag = number(exif, at, 2, big), type = number(exif, at + 2, 2, big);
    if (!tag || !type) return std::nullopt;
    constexpr uint32_t kTag = 0x0112, kByte = 1, kShort = 3, kLong = 4;
    if (*tag != kTag) continue;
    const size_t size = *type == kByte ? 1 : *type == kShort ? 2 : *type == kLong ? 4 : 0;
    const auto value = size > 0 ? number(exif, at + 8, size, big) : std::nullopt;
    return value ? std::optional(static_cast<int>(std::min(*value, 9u))) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(Bytes xmp) {
  const std::string_view text(reinterpret_cast<const char*>(xmp.data()), xmp.size());
  constexpr std::string_view kTag = "tiff:Orientation";
  for (size_t at = text.find(kTag); at != std::string_view::npos; at = text.find(kTag, at + 1)) {
    std::string_view rest = text.substr(at + kTag.size());
    const size_t skip = rest.starts_with("=\"") ? 2 : rest.starts_with('>') ? 1 : 0;
    rest.remove_prefix(skip);
    if (skip > 0 && !rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return std::nullopt;
}

}  // namespace

int read_orientation(Bytes encoded) {
  Metadata found;
  if (starts_with(encoded, "\xff\xd8\xff")) found = jpeg_metadata(encoded);
  if (starts_with(encoded, "\x89PNG")) found = png_metadata(encoded);
  if (starts_with(encoded, "RIFF")) found = webp_metadata(encoded);
  std::optional<int> orientation = exif_orientation(found.exif);
  if (!orientation) orientation = xmp_orientation(found.xmp);
  return orientation && *orientation >= 1 && *orientation <= 8 ? *orientation : 1;
}

void apply_orientation(int orientation, Image& image) {
  if (orientation < 2 || orientation > 8) return;
  const bool turned = orientation >= 5;  // rows become columns
  const bool mirror_x =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image out;
  out.reshape(image.channels, turned ? image.width : image.height,
              turned ? image.height : image.width);
  // The pixel at (y, x) comes from (row, column) of the image as it was.
  for (int c = 0; c < image.channels; ++c) {
    uint8_t* to = out.plane(c);
    for (int y = 0; y < out.height; ++y)
      for (int x = 0; x < out.width; ++x) {
        const int row = turned ? x : y, column = turned ? y : x;
        const auto from_row = static_cast<size_t>(mirror_y ? image.height - 1 - row : row);
        const auto from_column = static_cast<size_t>(mirror_x ? image.width - 1 - column : column);
        *to++ = image.plane(c)[from_row * static_cast<size_t>(image.width) + from_column];
      }
  }
  image = std::move(out);
}

}  // namespace vitrum
