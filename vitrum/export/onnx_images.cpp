// What works on images as ONNX nodes: patches and convolutions.
#include <algorithm>

#include "vitrum/export/onnx_translator.h"

namespace vitrum {

void OnnxTranslator::emit(const NoAttributes<Normalize>&) {
  const int64_t channels = shape(Normalize::kScale)[0];
  std::string x = in(Normalize::kPixels);
  if (info(Normalize::kPixels).dtype == DType::kU8)
    x = part("Cast", {x}, {{"to", int64_t{onnx::TensorProto::FLOAT}}});
  const std::string scale = out_.weight(info(Normalize::kScale).name, {channels, 1, 1},
                                        data(Normalize::kScale)),
                    shift = out_.weight(info(Normalize::kShift).name, {channels, 1, 1},
                                        data(Normalize::kShift));
  last("Add", {part("Mul", {x, scale}), shift});
}

// With the linear layer behind it a convolution, which every runtime is good at.
void OnnxTranslator::emit(const Patchify& op) {
  const auto& [patch_h, patch_w, order] = op;
  if (has(Patchify::kScale)) refuse_fused();
  // channels_last()
  if (patch_h == 1 && patch_w == 1 && order == PatchOrder::kChannelLast) {
    names_[static_cast<size_t>(node_->out[Patchify::kY])] = in(Patchify::kImage);
    planes_.insert(node_->out[Patchify::kY]);
    return;
  }
  patchified_[node_->out[Patchify::kY]] = {op, in(Patchify::kImage), shape(Patchify::kImage)};
}

void OnnxTranslator::emit_patch_embedding(const Patches& patches) {
  const auto& [op, image, image_shape] = patches;
  const auto& [patch_h, patch_w, order] = op;
  const int64_t width = shape(Linear::kWeight)[0], channels = image_shape[1],
                pixels = patch_h * patch_w;
  std::vector<float> kernel = data(Linear::kWeight);
  if (order == PatchOrder::kChannelLast)  // (out, P, P, C) -> (out, C, P, P)
    for (int64_t o = 0, n = channels * pixels; o < width; ++o) {
      const std::vector<float> one(kernel.begin() + o * n, kernel.begin() + (o + 1) * n);
      std::ranges::copy(transposed(one, pixels, channels), kernel.begin() + o * n);
    }
  Names operands = {
      image, out_.weight(info(Linear::kWeight).name, {width, channels, patch_h, patch_w}, kernel)};
  if (has(Linear::kBias)) operands.push_back(in(Linear::kBias));
  const std::string maps =
      part("Conv", operands,
           {{"kernel_shape", Ints{patch_h, patch_w}}, {"strides", Ints{patch_h, patch_w}}});
  if (shape(Linear::kX).rank() == 4)  // the patches are pixels
    return last("Transpose", {maps}, {{"perm", Ints{0, 2, 3, 1}}});
  const std::string flat = part("Reshape", {maps, out_.list({0, width, -1})});
  last("Transpose", {flat}, {{"perm", Ints{0, 2, 1}}});
}

// Of a window over images in planes.
OnnxTranslator::Attributes OnnxTranslator::window(int64_t kernel, int64_t stride,
                                                  int64_t padding) const {
  if (!in_planes(0)) fail("{}: its operand is no image in planes", node_->name);
  return {{"kernel_shape", Ints{kernel, kernel}},
          {"strides", Ints{stride, stride}},
          {"pads", Ints(4, padding)}};
}

void OnnxTranslator::emit(const Conv2d& op) {
  const auto& [stride, padding, eps, act] = op;
  if (has(Conv2d::kNormWeight)) refuse_fused();
  last("Conv", {in(Conv2d::kX), in(Conv2d::kWeight)},
       window(shape(Conv2d::kWeight)[2], stride, padding));
}

// Channels last but for this op, since what is round it are linear layers.
void OnnxTranslator::emit(const DepthwiseConv& op) {
  const auto& [padding] = op;
  const int64_t kernel = shape(DepthwiseConv::kWeight)[2];
  Names operands = {part("Transpose", {in(DepthwiseConv::kX)}, {{"perm", Ints{0, 3, 1, 2}}}),
                    in(DepthwiseConv::kWeight)};
  if (has(DepthwiseConv::kBias)) operands.push_back(in(DepthwiseConv::kBias));
  const std::string planes = part("Conv", operands,
                                  {{"kernel_shape", Ints{kernel, kernel}},
                                   {"pads", Ints(4, padding)},
                                   {"group", shape(DepthwiseConv::kX)[3]}});
  last("Transpose", {planes}, {{"perm", Ints{0, 2, 3, 1}}});
}

void OnnxTranslator::emit(const MaxPool& op) {
  const auto& [kernel, stride, padding] = op;
  last("MaxPool", {in(MaxPool::kX)}, window(kernel, stride, padding));
}

void OnnxTranslator::emit(const FrozenBatchNorm& op) {
  const auto& [eps, act] = op;
  if (has(FrozenBatchNorm::kSkip) || act != Act::kNone) refuse_fused();
  Names operands;
  for (size_t i = 0; i < FrozenBatchNorm::kSkip; ++i) operands.push_back(in(i));
  last("BatchNormalization", operands, {{"epsilon", eps}});
}

}  // namespace vitrum
