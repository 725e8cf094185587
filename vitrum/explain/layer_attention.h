// What the attention of one layer did to one image, and where its tokens lie. Attention over the
// whole image is one window; in windows, each has a matrix of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace vitrum {

struct TokenGrid {
  int64_t rows = 0, columns = 0;      // of patches, row by row
  int64_t prefix = 0;                 // class, distillation and register tokens, before the patches
  std::vector<int64_t> readout = {};  // the tokens that the head reads; empty: all patches
  // How much a learned query that pools the tokens looks at each of them, where the model has one:
  // then the head reads that.
  std::vector<double> shares = {};

  int64_t patches() const { return rows * columns; }
  int64_t tokens() const { return prefix + patches(); }
};

struct LayerAttention {
  std::string name;    // "blocks.3.attn"
  int64_t number = 0;  // among the model's layers with attention
  TokenGrid grid;
  int64_t windows = 1, heads = 1, size = 0;  // size: tokens of a window
  std::vector<int64_t> place;  // (windows, size): the token at each place; -1 for padding
  std::vector<float> weights;  // (windows, heads, size, size): a row a query
  // Of a class's score with respect to the weights; empty where it was not asked for.
  std::vector<float> gradient;

  const float* matrix(const std::vector<float>& of, int64_t window, int64_t head) const {
    return of.data() + (window * heads + head) * size * size;
  }
};

}  // namespace vitrum
