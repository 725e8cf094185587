#include "vitrum/weights/layout.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace vitrum {
namespace {

// Where the file holds our element (row, column).
struct FileIndex {
  Layout layout;
  int64_t rows, columns;
  int64_t patch_h, patch_w, channels;

  int64_t operator()(int64_t row, int64_t column) const {
    switch (layout) {
      case Layout::kKernel:
      case Layout::kGrid:
      case Layout::kHeadKernel:
      case Layout::kOutKernel: return column * rows + row;
      case Layout::kConvHwio: {  // our column is (channel, y, x)
        const int64_t x = column % patch_w, y = column / patch_w % patch_h,
                      channel = column / (patch_w * patch_h);
        return ((y * patch_w + x) * channels + channel) * rows + row;
      }
      case Layout::kPatch: {  // our column is (channel, y, x)
        const int64_t area = patch_h * patch_w;
        return row * columns + column % area * channels + column / area;
      }
      case Layout::kNeighbours: {  // our column is (y, x, channel)
        const int64_t plane = columns / 4;
        return row * columns + column % plane * 4 + column / plane;
      }
      default: return row * columns + column;
    }
  }
};

// Calls move(ours, file) for all elements, sixteen rows at a time: that is a cache line of the side
// that is not walked in order.
template <class Move>
void visit(const FileIndex& file, const Move& move) {
  constexpr int64_t kBlock = 16;
  for (int64_t top = 0; top < file.rows; top += kBlock)
    for (int64_t c = 0; c < file.columns; ++c)
      for (int64_t r = top; r < std::min(top + kBlock, file.rows); ++r)
        move(r * file.columns + c, file(r, c));
}

template <size_t kElement, bool kToOurs>
void permute(const FileIndex& index, const std::byte* from, std::byte* to) {
  visit(index, [&](int64_t ours, int64_t file) {
    const int64_t target = kToOurs ? ours : file, source = kToOurs ? file : ours;
    std::memcpy(to + static_cast<size_t>(target) * kElement,
                from + static_cast<size_t>(source) * kElement, kElement);
  });
}

template <bool kToOurs>
void convert(Layout layout, const Matrix& m, const ModelConfig& c, std::span<const std::byte> from,
             std::span<std::byte> to) {
  assert(from.size() == to.size() &&
         from.size() == static_cast<size_t>(m.rows * m.columns) * m.element);
  if (from.empty()) return;
  const LayoutSizes s = layout_sizes(c);
  if (same_memory(layout) || (layout == Layout::kPatch && !s.patch_rows)) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const FileIndex index{layout, m.rows, m.columns, s.patch_h, s.patch_w, s.channels};
  switch (m.element) {
    case 2: return permute<2, kToOurs>(index, from.data(), to.data());
    case 4: return permute<4, kToOurs>(index, from.data(), to.data());
    default: return permute<8, kToOurs>(index, from.data(), to.data());
  }
}

}  // namespace

bool same_memory(Layout layout) {
  switch (layout) {
    case Layout::kSame:
    case Layout::kConv:
    case Layout::kHeadBias:
    case Layout::kSqueezed:
    case Layout::kPixel:
    case Layout::kPlanes:
    case Layout::kLine: return true;
    case Layout::kConvHwio:
    case Layout::kKernel:
    case Layout::kGrid:
    case Layout::kPatch:
    case Layout::kHeadKernel:
    case Layout::kOutKernel:
    case Layout::kNeighbours: break;
  }
  return false;
}

void to_ours(Layout layout, const Matrix& m, const ModelConfig& config,
             std::span<const std::byte> from, std::span<std::byte> to) {
  convert<true>(layout, m, config, from, to);
}
void from_ours(Layout layout, const Matrix& m, const ModelConfig& config,
               std::span<const std::byte> from, std::span<std::byte> to) {
  convert<false>(layout, m, config, from, to);
}

}  // namespace vitrum
