// Model directories from the Hugging Face hub.
#pragma once
#include <string>
#include <vector>

#include "vitrum/fetch/download.h"

namespace vitrum {

struct HubModel {
  std::string id;  // "google/vit-base-patch16-224"
  std::string revision = "main";
  std::string endpoint = "https://huggingface.co";
  std::string cache = {};  // a Hugging Face cache directory (HF_HOME); files found there are copied
};

struct Downloaded {
  std::vector<std::string> files;  // names in the directory
  int64_t bytes = 0;
  bool stopped = false;
};

// Fails where it is not "name" or "owner/name" as the hub allows them.
void check_hub_id(const std::string& id);

// The name of a file that download_model() may write, perhaps in part.
bool is_of_hub_model(const std::string& name);

// config.json, preprocessor_config.json and the weights: safetensors (whole or in shards), else
// PyTorch's; nothing else of the repository. Checked against the hub's own checksums. Files of the
// same names that are not the hub's are replaced where `replace` says so, else refused.
Downloaded download_model(HttpClient& client, const HubModel& model, const std::string& to,
                          int64_t max_bytes, const DownloadOptions& options, bool replace = false);

}  // namespace vitrum
