#include "vitrum/cli/other_names.h"

#include <algorithm>
#include <array>

namespace vitrum {
namespace {

constexpr std::array kVerbs = std::to_array<OtherName>({{"predict", "classify"},
                                                        {"infer", "classify"},
                                                        {"inference", "classify"},
                                                        {"run", "classify"},
                                                        {"test", "eval"},
                                                        {"val", "eval"},
                                                        {"validate", "eval"},
                                                        {"evaluate", "eval"},
                                                        {"score", "eval"},
                                                        {"fit", "train"},
                                                        {"mae", "pretrain"},
                                                        {"tune", "finetune"},
                                                        {"fine-tune", "finetune"},
                                                        {"transfer", "finetune"},
                                                        {"benchmark", "bench"},
                                                        {"profile", "bench"},
                                                        {"features", "embed"},
                                                        {"extract", "embed"},
                                                        {"encode", "embed"},
                                                        {"info", "summary"},
                                                        {"torchinfo", "summary"},
                                                        {"describe", "summary"},
                                                        {"list", "models"},
                                                        {"list-models", "models"},
                                                        {"onnx", "export"},
                                                        {"save", "export"},
                                                        {"pull", "download"},
                                                        {"fetch", "download"},
                                                        {"get", "download"},
                                                        {"dataset", "data"},
                                                        {"datasets", "data"},
                                                        {"checks", "doctor"},
                                                        {"env", "doctor"},
                                                        {"visualize", "explain"},
                                                        {"attention", "explain"},
                                                        {"distillation", "distill"},
                                                        {"pretraining", "pretrain"},
                                                        {"plot", "report"}});

constexpr std::array kOptions = std::to_array<OtherName>({{"--learning-rate", "--lr"},
                                                          {"--lr0", "--lr"},
                                                          {"--bs", "--batch-size"},
                                                          {"--bs", "--batch"},
                                                          {"--batchsize", "--batch-size"},
                                                          {"--batchsize", "--batch"},
                                                          {"--ckpt", "--weights"},
                                                          {"--ckpt", "--model"},
                                                          {"--ckpt-path", "--weights"},
                                                          {"--ckpt-path", "--model"},
                                                          {"--checkpoint", "--weights"},
                                                          {"--checkpoint", "--model"},
                                                          {"--pretrained", "--weights"},
                                                          {"--initial-checkpoint", "--weights"},
                                                          {"--weights", "--model"},
                                                          {"--model-name-or-path", "--model"},
                                                          {"--img", "--image-size"},
                                                          {"--imgsz", "--image-size"},
                                                          {"--img-size", "--image-size"},
                                                          {"--input-size", "--image-size"},
                                                          {"--resolution", "--image-size"},
                                                          {"--data-dir", "--data"},
                                                          {"--dataset", "--data"},
                                                          {"--data-path", "--data"},
                                                          {"--train-dir", "--data"},
                                                          {"--source", "--data"},
                                                          {"--num-epochs", "--epochs"},
                                                          {"--num-train-epochs", "--epochs"},
                                                          {"--epoch", "--epochs"},
                                                          {"--gpu", "--device"},
                                                          {"--gpus", "--device"},
                                                          {"--accelerator", "--device"},
                                                          {"--cuda", "--device"},
                                                          {"--amp", "--precision"},
                                                          {"--half", "--precision"},
                                                          {"--fp16", "--precision"},
                                                          {"--dtype", "--precision"},
                                                          {"--workers", "--threads"},
                                                          {"--num-workers", "--threads"},
                                                          {"--jobs", "--threads"},
                                                          {"--output-dir", "--out"},
                                                          {"--output-dir", "--output"},
                                                          {"--save-dir", "--out"},
                                                          {"--save-dir", "--output"},
                                                          {"--logdir", "--out"},
                                                          {"--project", "--out"},
                                                          {"--config", "--recipe"},
                                                          {"--cfg", "--recipe"},
                                                          {"--classes", "--num-classes"},
                                                          {"--nc", "--num-classes"},
                                                          {"--topk", "--top-k"}});

constexpr std::array kValues = std::to_array<OtherName>(
    {{"fp32", "f32"},        {"float32", "f32"},     {"float", "f32"},
     {"32", "f32"},          {"bfloat16", "bf16"},   {"fp16", "bf16"},
     {"float16", "bf16"},    {"half", "bf16"},       {"amp", "bf16"},
     {"16", "bf16"},         {"i8", "int8"},         {"8", "int8"},
     {"e4m3", "fp8"},        {"float8", "fp8"},      {"transformers", "hf"},
     {"huggingface", "hf"},  {"inference", "infer"}, {"eval", "infer"},
     {"training", "train"},  {"zeros", "zero"},      {"grad-cam", "gradient"},
     {"gradcam", "gradient"}});

const std::array<std::vector<std::string>, 2> kAlike = {
    {{"--batch-size", "--batch"}, {"--output", "--out", "--to"}}};

}  // namespace

std::span<const OtherName> other_verbs() { return kVerbs; }
std::span<const OtherName> other_options() { return kOptions; }
std::span<const OtherName> other_values() { return kValues; }

std::vector<std::string> alike(const std::string& name) {
  for (std::vector<std::string> group : kAlike)
    if (std::erase(group, name) > 0) return group;
  return {};
}

}  // namespace vitrum
