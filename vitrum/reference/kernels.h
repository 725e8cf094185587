// One `run` for each op; op.h lists the operands.
#pragma once
#include "vitrum/graph/op.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::reference {

void run(const Normalize&, const Operands& io);
void run(const Mix&, const Operands& io);
void run(const TakeImages&, const Operands& io);
void run(const Patchify&, const Operands& io);
void run(const Linear&, const Operands& io);
void run(const Activation&, const Operands& io);
void run(const LayerNorm&, const Operands& io);
void run(const AddLayerNorm&, const Operands& io);
void run(const Attention&, const Operands& io);
void run(const RelativeBias&, const Operands& io);
void run(const Rotate&, const Operands& io);
void run(const Gate&, const Operands& io);
void run(const GatherTokens&, const Operands& io);
void run(const AttentionProbs&, const Operands& io);
void run(const Add&, const Operands& io);
void run(const ChannelScale&, const Operands& io);
void run(const Dropout&, const Operands& io);
void run(const DropPath&, const Operands& io);
void run(const KeepTokens&, const Operands& io);
void run(const PlaceTokens&, const Operands& io);
void run(const Tokens&, const Operands& io);
void run(const Pool&, const Operands& io);
void run(const AttendPool&, const Operands& io);
void run(const AttendPoolBwd&, const Operands& io);
void run(const Lookup&, const Operands& io);
void run(const CrossEntropy&, const Operands& io);
void run(const Argmax&, const Operands& io);
void run(const LogSoftmax&, const Operands& io);
void run(const TrainMetrics&, const Operands& io);
void run(const LinearBwd&, const Operands& io);
void run(const ActivationBwd&, const Operands& io);
void run(const LayerNormBwd&, const Operands& io);
void run(const AttentionBwd&, const Operands& io);
void run(const RelativeBiasBwd&, const Operands& io);
void run(const GateBwd&, const Operands& io);
void run(const AttentionProbsGrad&, const Operands& io);
void run(const ChannelScaleBwd&, const Operands& io);
void run(const TokensBwd&, const Operands& io);
void run(const PoolBwd&, const Operands& io);
void run(const CrossEntropyBwd&, const Operands& io);
void run(const ClearRange&, const Operands& io);
void run(const ClipScale&, const Operands& io);
void run(const BlockSquares&, const Operands& io);
void run(const Fold&, const Operands& io);
void run(const OptimizerStep&, const Operands& io);
void run(const Conv2d&, const Operands& io);
void run(const MaxPool&, const Operands& io);
void run(const DepthwiseConv&, const Operands& io);
void run(const ResponseNorm&, const Operands& io);
void run(const UnitHeads&, const Operands& io);
void run(const QLinear&, const Operands& io);
void run(const QAttention&, const Operands& io);
void run(const ToE4M3&, const Operands& io);
void run(const BatchNorm&, const Operands& io);
void run(const FrozenBatchNorm&, const Operands& io);
void run(const RunningStats&, const Operands& io);
void run(const Conv2dBwd&, const Operands& io);
void run(const MaxPoolBwd&, const Operands& io);
void run(const DepthwiseConvBwd&, const Operands& io);
void run(const ResponseNormBwd&, const Operands& io);
void run(const UnitHeadsBwd&, const Operands& io);
void run(const BatchNormBwd&, const Operands& io);
void run(const Orthogonalize&, const Operands& io);
void run(const Perturb&, const Operands& io);
void run(const Copy&, const Operands& io);

double activate(Act act, double x);
double activation_slope(Act act, double x);

}  // namespace vitrum::reference
