// Requests and answers of the Open Inference Protocol (KServe's and Triton's v2) with its binary
// tensor and classification extensions.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum::serve {

// What a model takes and gives.
struct OipShape {
  int64_t channels = 3, height = 224, width = 224, classes = 1000, dimension = 192;
};

struct OipOutput {
  std::string name;  // "logits", "features" or "labels"
  bool binary = false;
  int64_t classification = 0;  // not 0: the best so many, as "value:index:label"
};

struct OipRequest {
  std::string id;
  bool decoded = false;                  // pixels rather than encoded images
  std::vector<std::string_view> images;  // views into the body, or into `owned`
  std::vector<std::string> owned;
  std::vector<OipOutput> outputs;
  double timeout_seconds = 0;  // 0: none given
  uint64_t priority = 0;       // 0: none given; else lower ones first
};

// `json_bytes` is Inference-Header-Content-Length, or the size of the body where it has none.
// Throws (bad input) what is wrong.
OipRequest parse_oip(std::string_view body, size_t json_bytes, const OipShape& shape,
                     size_t most_images);

// One named result for all images of a request.
struct OipResult {
  std::string name, type;  // "FP32" or "BYTES"
  std::vector<int64_t> shape;
  std::vector<float> numbers;      // of FP32
  std::vector<std::string> texts;  // of BYTES
  bool binary = false;
};

struct OipAnswer {
  std::string body;
  size_t json_bytes = 0;  // 0: all of it, with nothing binary behind
};
OipAnswer write_oip(const std::string& model, const std::string& version, const std::string& id,
                    const std::vector<OipResult>& results);

}  // namespace vitrum::serve
