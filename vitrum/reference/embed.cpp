#include <algorithm>
#include <numeric>

#include "vitrum/reference/kernels.h"
#include "vitrum/reference/values.h"

namespace vitrum::reference {

// (B, C, H, W) * scale (C) + shift (C); unchanged where they are absent
static Values normalized(const TensorView& image, const TensorView& scale,
                         const TensorView& shift) {
  Values v = read(image);
  const Values a = read(scale), b = read(shift);
  const auto channels = static_cast<size_t>(image.shape[1]);
  const auto pixels = static_cast<size_t>(image.shape[2] * image.shape[3]);
  for (size_t i = 0; i < v.size() && !a.empty(); ++i) {
    const size_t c = i / pixels % channels;
    v[i] = v[i] * a[c] + b[c];
  }
  return v;
}

void run(const NoAttributes<Normalize>&, const Operands& io) {
  write(io.out[Normalize::kY],
        normalized(io.in[Normalize::kPixels], io.in[Normalize::kScale], io.in[Normalize::kShift]));
}

void run(const NoAttributes<Mix>&, const Operands& io) {
  const Shape& s = io.in[Mix::kPixels].shape;
  const Values image = read(io.in[Mix::kPixels]), mix = read(io.in[Mix::kMix]);
  const int64_t size = s[1] * s[2] * s[3];  // of an image
  Values out(image.size());
  for (int64_t i = 0; i < s.numel(); ++i) {
    const double* const m = &mix[i / size * 6];
    const auto y = static_cast<double>(i / s[3] % s[2]), x = static_cast<double>(i % s[3]);
    const bool in_box = y >= m[2] && y < m[3] && x >= m[4] && x < m[5];
    const double own = in_box ? 0 : m[1];
    const double partner = image[static_cast<int64_t>(m[0]) * size + i % size];
    out[i] = own * image[i] + (1 - own) * partner;
  }
  write(io.out[Mix::kY], out);
}

// Byte (y, x) of channel c in the row's box.
static double erased(const ImageRow& row, const Values& noise, int64_t c, int64_t y, int64_t x) {
  if (noise.empty()) return row.colour >> (8 * c) & 0xff;
  const int64_t pixel = (y - row.top) * row.width + x - row.left;
  const int64_t words = (int64_t{row.height} * row.width + 1) / 2;  // of a channel
  const uint32_t word = stream_word((uint64_t{row.seed_high} << 32) | row.seed_low, row.stream,
                                    (uint64_t{row.index_high} << 32) | row.index_low,
                                    row.position + static_cast<uint32_t>(c * words + pixel / 2));
  return noise[c * 4096 + (word >> (16 * (pixel % 2)) & 0xffff) / 16];
}

void run(const NoAttributes<TakeImages>&, const Operands& io) {
  const Shape& s = io.out[TakeImages::kY].shape;
  const int64_t height = s[2], width = s[3];
  const Values images = read(io.in[TakeImages::kImages]),
               noise = read(at(io.in, TakeImages::kNoise));
  const auto* const rows = static_cast<const ImageRow*>(io.in[TakeImages::kRows].data);
  Values out(static_cast<size_t>(s.numel()));
  for (int64_t i = 0; i < s.numel(); ++i) {
    const int64_t x = i % width, y = i / width % height, c = i / (width * height) % s[1];
    const ImageRow& row = rows[i / (width * height * s[1])];
    if (row.image < 0) continue;
    const int64_t from_y = y + row.down, from_x = (row.mirror ? width - 1 - x : x) + row.right;
    if (y >= row.top && y < row.top + row.height && x >= row.left && x < row.left + row.width)
      out[i] = erased(row, noise, c, y, x);
    else if (from_y >= 0 && from_y < height && from_x >= 0 && from_x < width)
      out[i] = images[((row.image * s[1] + c) * height + from_y) * width + from_x];
  }
  write(io.out[TakeImages::kY], out);
}

void run(const Patchify& op, const Operands& io) {
  const auto& [patch_h, patch_w, order] = op;
  const Values image =
      normalized(io.in[Patchify::kImage], at(io.in, Patchify::kScale), at(io.in, Patchify::kShift));
  const Shape& s = io.in[Patchify::kImage].shape;
  const int64_t channels = s[1], height = s[2], width = s[3], ph = patch_h, pw = patch_w;
  Values out(image.size());
  int64_t i = 0;  // of `image`
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x, ++i) {
          const int64_t patch = (b * (height / ph) + y / ph) * (width / pw) + x / pw;
          const int64_t pixel = y % ph * pw + x % pw;
          const int64_t place =
              order == PatchOrder::kChannelFirst ? c * ph * pw + pixel : pixel * channels + c;
          out[patch * channels * ph * pw + place] = image[i];
        }
  write(io.out[Patchify::kY], out);
}

void run(const NoAttributes<Tokens>&, const Operands& io) {
  const Shape& s = io.in[Tokens::kX].shape;
  const Values x = read(io.in[Tokens::kX]), pos = read(io.in[Tokens::kPos]);
  const int64_t n = s[1], c = s[2];
  Values prefixes;  // one token after the other
  for (size_t i = Tokens::kPrefix; i < io.in.size(); ++i) {
    const Values p = read(io.in[i]);
    prefixes.insert(prefixes.end(), p.begin(), p.end());
  }
  const int64_t prefix = static_cast<int64_t>(prefixes.size()) / c;
  Values out;
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t t = 0; t < prefix + n; ++t)
      for (int64_t i = 0; i < c; ++i) {
        const double token = t < prefix ? prefixes[t * c + i] : x[(b * n + t - prefix) * c + i];
        out.push_back(token + (pos.empty() ? 0 : pos[t * c + i]));
      }
  write(io.out[Tokens::kY], out);
}

void run(const TokensBwd& op, const Operands& io) {
  const auto& [prefixes] = op;
  const Shape& s = io.in[TokensBwd::kDy].shape;
  const Values dy = read(io.in[TokensBwd::kDy]);
  const int64_t tokens = s[1], c = s[2];
  const int64_t prefix = std::accumulate(prefixes.begin(), prefixes.end(), int64_t{0});
  Values dx;
  for (int64_t b = 0; b < s[0]; ++b)
    dx.insert(dx.end(), dy.begin() + (b * tokens + prefix) * c, dy.begin() + (b + 1) * tokens * c);
  write(io.out[TokensBwd::kDx], dx);

  const Values dpos = sum_rows(dy, tokens * c);  // over images
  add_to(io.out[TokensBwd::kDpos], dpos);
  auto from = dpos.begin();
  for (size_t i = 0; i < prefixes.size(); ++i) {
    const auto to = from + prefixes[i] * c;
    add_to(io.out[TokensBwd::kDprefix + i], Values(from, to));
    from = to;
  }
}

// (B, H, W, C) as (B, H W, C)
static Shape as_tokens(const Shape& s) { return {s[0], s.rows() / s[0], s[-1]}; }

void run(const Pool& op, const Operands& io) {
  const auto& [first, count] = op;
  const Shape s = as_tokens(io.in[Pool::kX].shape);
  const Values x = read(io.in[Pool::kX]);
  Values y(static_cast<size_t>(s[0] * s[2]));
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t t = first; t < first + count; ++t)
      for (int64_t i = 0; i < s[2]; ++i) y[b * s[2] + i] += x[(b * s[1] + t) * s[2] + i];
  for (double& v : y) v /= static_cast<double>(count);
  write(io.out[Pool::kY], y);
}

void run(const PoolBwd& op, const Operands& io) {
  const auto& [first, count] = op;
  if (!io.out[PoolBwd::kDx]) return;
  const Shape s = as_tokens(io.out[PoolBwd::kDx].shape);
  const Values dy = read(io.in[PoolBwd::kDy]);
  Values dx(static_cast<size_t>(s.numel()));
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t t = first; t < first + count; ++t)
      for (int64_t i = 0; i < s[2]; ++i)
        dx[(b * s[1] + t) * s[2] + i] = dy[b * s[2] + i] / static_cast<double>(count);
  write(io.out[PoolBwd::kDx], dx);
}

}  // namespace vitrum::reference
