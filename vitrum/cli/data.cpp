#include <fmt/format.h>

#include <algorithm>

#include "vitrum/cli/check_data.h"
#include "vitrum/cli/output_guard.h"
#include "vitrum/cli/pack_data.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/contact_sheet.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/fetch/data_sets.h"
#include "vitrum/train/interrupt.h"

namespace vitrum {
namespace {

struct Options {
  std::string data, name, output, augment, to, mirror;
  bool check = false;
  PackArguments pack;
  bool& force = pack.force;
};

std::vector<int64_t> class_counts(const Dataset* dataset, size_t classes) {
  std::vector<int64_t> counts(classes, 0);
  for (int64_t i = 0; dataset && i < dataset->size(); ++i)
    ++counts[static_cast<size_t>(dataset->label(i))];
  return counts;
}

// What `--augment` does to the training images, for models of the images' own size or 224 pixels.
Image sheet_of(const Dataset& train, const Options& o) {
  if (o.augment.empty()) return class_sheet(train);
  constexpr int kUsual = 224;
  const ImageSize size = train.image_size();
  Preprocess preprocess{.channels = size.channels};
  preprocess.height = size.height ? size.height : kUsual;
  preprocess.width = size.width ? size.width : kUsual;
  const AugmentParts parts = parse_augment(o.augment);
  const Augment augment{.resized_crop = parts.resized_crop,
                        .crop_padding = parts.crop ? preprocess.height / 8 : 0,
                        .flip = parts.flip,
                        .alternates = parts.alternates,
                        .policies = parts.policies,
                        .fill = {124, 116, 104}};  // the mean of ImageNet
  return augmented_sheet(train, preprocess, augment, 0);
}

// ---- what is printed ----

std::string to_json(const DataSplits& splits, const Options& o) {
  const Dataset& train = *splits.train;
  const size_t classes = train.classes().size();
  JsonWriter json;
  json.begin_object().field("data", o.data).field("train", train.size());
  json.field("test", splits.test ? splits.test->size() : 0).key("classes").begin_array();
  for (const std::string& name : train.classes()) json.value(name);
  json.end_array().key("shape").begin_array();
  const ImageSize size = train.image_size();
  for (int n : {size.channels, size.height, size.width}) n == 0 ? json.null() : json.value(n);
  json.end_array();
  const auto counts = [&](const char* key, const Dataset* dataset) {
    json.key(key).begin_array();
    for (int64_t n : class_counts(dataset, classes)) json.value(n);
    json.end_array();
  };
  counts("train_counts", &train), counts("test_counts", splits.test.get());
  if (!o.output.empty()) json.field("output", o.output);
  return json.end_object().str() + "\n";
}

std::string to_text(const DataSplits& splits, const Options& o) {
  constexpr size_t kShown = 20;
  const Dataset& train = *splits.train;
  const std::vector<std::string>& classes = train.classes();
  const ImageSize size = train.image_size();
  std::string out = fmt::format("train    {} images\n", with_commas(train.size()));
  out += splits.test ? fmt::format("test     {} images\n", with_commas(splits.test->size()))
                     : "test     no split of its own\n";
  out += size.height ? fmt::format("shape    {}x{}x{}\n", size.channels, size.height, size.width)
                     : fmt::format("shape    {} channels, sizes differ\n", size.channels);
  out +=
      fmt::format("classes  {}\n\n  {:<30}{:>9}{:>9}\n", classes.size(), "class", "train", "test");
  const auto train_counts = class_counts(&train, classes.size()),
             test_counts = class_counts(splits.test.get(), classes.size());
  for (size_t i = 0; i < std::min(classes.size(), kShown); ++i) {
    const std::string name = fit_columns(classes[i], 29);
    const auto pad = static_cast<size_t>(30 - columns(name));
    out += fmt::format("  {}{}{:>9}{:>9}\n", name, std::string(pad, ' '),
                       with_commas(train_counts[i]), with_commas(test_counts[i]));
  }
  if (classes.size() > kShown)
    out += fmt::format("  ... and {} more; --json lists all\n", classes.size() - kShown);
  if (!o.output.empty())
    out += fmt::format("\ncontact sheet in {}, a row {}\n", printable(o.output),
                       o.augment.empty() ? "a class" : "an image, the first as it is");
  return out;
}

int download(const Options& o, const CommonOptions& common) {
  if (o.name.empty())
    fail_usage("`data download` needs a NAME: mnist, fashion-mnist, cifar10 or cifar100");
  const PublicData& data = find_public_data(o.name);
  const std::string& wanted = o.to.empty() ? o.output : o.to;
  const std::string to = wanted.empty() ? o.name : wanted;
  guard_download(to, o.force, [&](const std::string& name) {
    return std::any_of(data.archives.begin(), data.archives.end(),
                       [&](const DataArchive& a) { return name.starts_with(a.name); });
  });
  const InterruptGuard guard;
  HttpClient client({.stop = [&] { return guard.signal() != 0; }});
  const Downloaded result = download_data(client, data, to, o.mirror, {.quiet = common.quiet});
  return report_download(result, to, o.name + ":" + to, guard.signal(), common);
}

int pack(const Options& o, const CommonOptions& common) {
  if (o.name.empty() || o.pack.folder.empty())
    fail_usage("`data pack` needs SRC, a data set, and DIR, the folder for its shards");
  if (o.check || !o.augment.empty() || !o.output.empty() || !o.to.empty() || !o.mirror.empty())
    fail_usage("`data pack` takes --copy, --size, --quality, --shards and --force");
  PackArguments arguments = o.pack;
  arguments.source = o.name;
  return pack_data(arguments, common);
}

int run(const Options& o, const CommonOptions& common) {
  if (o.data == "download") return download(o, common);
  if (o.data == "pack") return pack(o, common);
  if (o.pack.copy || o.pack.size || o.pack.quality || o.pack.shards || !o.pack.folder.empty())
    fail_usage("--copy, --size, --quality and --shards are for `vitrum data pack SRC DIR`");
  if (!o.name.empty()) fail_usage("unexpected argument '{}'; see `vitrum data --help`", o.name);
  if (!o.to.empty() || !o.mirror.empty())
    fail_usage("--to and --mirror are for `vitrum data download NAME`");
  const DataSplits splits = open_data(o.data, /*test_needed=*/false);
  if (o.check) return check_data(splits, common);
  if (!o.augment.empty() && o.output.empty())
    fail_usage("--augment draws a contact sheet and needs --output FILE");
  if (!o.output.empty()) {
    OutputGuard guard(o.force);
    guard.reads_data(o.data), guard.reads_images(*splits.train);
    if (splits.test) guard.reads_images(*splits.test);
    guard.file(o.output, Content::kPng);
    write_file_atomic(o.output, encode_png(sheet_of(*splits.train, o)));
  }
  common.json ? print_out(to_json(splits, o)) : print_text(to_text(splits, o));
  return 0;
}

}  // namespace

Verb data_verb() {
  auto o = std::make_shared<Options>();
  return {
      .name = "data",
      .summary = "describe a data set, download a public one, or pack one into tar shards",
      .examples = {"data fashion-mnist", "data folder:flowers --output sheet.png",
                   "data cifar10:DIR --augment crop-flip+trivial --output sheet.png",
                   "data folder:flowers --check", "data download cifar10 --to DIR",
                   "data pack folder:flowers flowers-256 --size 256 --quality 95"},
      .options =
          {{.name = "DATA",
            .target = &o->data,
            .help = "fashion-mnist[:DIR], mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR, "
                    "csv:FILE or "
                    "shards:DIR (tar shards)",
            .required = true},
           {"NAME", &o->name,
            "after `download`: mnist, fashion-mnist, cifar10 or cifar100; after `pack`: DATA"},
           {"DIR", &o->pack.folder, "after `pack` and DATA: the folder for its shards"},
           {"--output", &o->output, "write a contact sheet, a row a class, to this PNG file",
            "FILE"},
           {"--augment", &o->augment,
            "the sheet shows training images so augmented, as \"crop-flip+trivial\"", "POLICY"},
           {"--check", &o->check,
            "read every image: broken and empty files, duplicates, images that are in two splits; "
            "exit code 1 where there are any"},
           {"--to", &o->to, "folder that a download goes to; by default its name", "DIR"},
           {"--mirror", &o->mirror, "download from below this URL instead", "URL"},
           {"--copy", &o->pack.copy, "pack: files as they are, so the same pixels; the default"},
           {.name = "--size",
            .target = &o->pack.size,
            .help = "pack: make larger images smaller, their shortest edge so many pixels",
            .min = 8,
            .max = 8192},
           {.name = "--quality",
            .target = &o->pack.quality,
            .help = "pack: of the JPEG files that --size writes; 95 by default",
            .min = 1,
            .max = 100},
           {.name = "--shards",
            .target = &o->pack.shards,
            .help = "pack: shards of a split; by default one for 2,000 images, from 33 on a "
                    "multiple of 64",
            .min = 1,
            .max = 1'000'000},
           force_option(o->force)},
      .run = [o](const CommonOptions& common) { return run(*o, common); }};
}

}  // namespace vitrum
