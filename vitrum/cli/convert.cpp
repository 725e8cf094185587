#include "vitrum/weights/convert.h"

#include <fmt/format.h>

#include <filesystem>

#include "vitrum/cli/output_guard.h"
#include "vitrum/core/json_text.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

struct Options {
  std::string source, target, dialect, arch;
  bool image_only = false, decoder = false, force = false;
};

void guard_target(const Options& o) {
  OutputGuard guard(o.force);
  guard.reads(o.source);
  const std::string ending = std::filesystem::path(o.target).extension().string();
  if (ending == ".safetensors") return guard.file(o.target, Content::kSafetensors);
  for (const char* file : {".pth", ".pt", ".bin", ".npz"})
    if (ending == file) return guard.file(o.target, Content::kZip);
  guard.model_directory(o.target);
}

int run(const Options& o, const CommonOptions& common) {
  guard_target(o);
  const Converted done = convert_model(o.source, o.arch, o.target, o.dialect, {},
                                       {.texts = !o.image_only, .decoder = o.decoder});
  for (const std::string& note : done.notes) info(common, "note: " + note);
  if (common.json)
    print_out(JsonWriter()
                  .begin_object()
                  .field("tensors", done.tensors)
                  .field("bytes", done.bytes)
                  .end_object()
                  .str() +
              "\n");
  else
    info(common,
         fmt::format("{}: {} tensors, {}", o.target, done.tensors, human_bytes(done.bytes)));
  return 0;
}

}  // namespace

Verb convert_verb() {
  auto o = std::make_shared<Options>();
  return {.name = "convert",
          .summary = "write a model in another framework's names and layout",
          .examples = {"convert runs/1/best OUT --to hf",
                       "convert google.npz OUT --arch vit_base_patch16_224 --to timm",
                       "convert DIR vit_b_16.pth --to torchvision",
                       "convert DIR dinov2_vits14.pth --to original",
                       "convert clip-vit-base-patch32 open_clip_dir --to original"},
          .options =
              {{.name = "SRC",
                .target = &o->source,
                .help = "model directory, or a weight file with --arch",
                .required = true},
               {.name = "DST",
                .target = &o->target,
                .help = "directory (timm, hf; original where there are texts), or file ending in "
                        ".safetensors, .pth or .npz",
                .required = true,
                .also = {"--output", "--out"}},
               {.name = "--to",
                .target = &o->dialect,
                .help = "whose names and layout",
                .required = true,
                .choices = {"timm", "hf", "torchvision", "npz", "original"}},
               {"--arch", &o->arch, "preset that a weight file without a config is of", "PRESET"},
               {.name = "--image-only",
                .target = &o->image_only,
                .help = "of a model of images and texts, the image tower alone"},
               {.name = "--with-decoder",
                .target = &o->decoder,
                .help = "of a masked autoencoder the decoder, too: transformers' "
                        "ViTMAEForPreTraining, Meta's file"},
               force_option(o->force)},
          .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
