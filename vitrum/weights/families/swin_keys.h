// What the files of Swin and Swin V2 have in common: fields, sizes, and keys of configs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "vitrum/models/swin.h"
#include "vitrum/weights/family.h"

namespace vitrum {

void swin_fields(FieldVisitor& visit, SwinConfig& c);
bool same_swin_sizes(const SwinConfig& preset, const SwinConfig& c);
void check_swin_size(const SwinConfig& c, const std::string& path);

// The names of timm's arguments that both have, and `more`.
std::vector<std::string> swin_timm_args(const std::vector<std::string>& more);
void read_swin_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c);
nlohmann::ordered_json swin_timm_sizes(const SwinConfig& c);

void read_swin_hf(const JsonKeys& keys, SwinConfig& c);
// `kind` is "Swin" or "Swinv2".
nlohmann::ordered_json swin_hf_keys(const SwinConfig& c, const std::string& kind,
                                    const std::string& dtype);

}  // namespace vitrum
