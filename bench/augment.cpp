// augment time ROUNDS IMAGE...: milliseconds per image on one thread of DeiT's training pipeline at
// 224 pixels (decode, resized crop, flip, rand-m9-mstd0.5-inc1, erase 0.25), the best of the
// rounds. augment serve: answers requests on stdin with pixels on stdout, for
// tools/check/check_augment.py:
//   edit KIND VALUE M0 .. M5 FILTER RED GREEN BLUE CHANNELS HEIGHT WIDTH, then pixels
//   op POLICY NAME LEVEL DRAW FILTER RED GREEN BLUE CHANNELS HEIGHT WIDTH, then pixels
//   crop TOP LEFT ROWS COLUMNS FILTER SIZE PATH    decodes a window of a file and resizes it
#include "vitrum/data/augment.h"

#include <cstdio>
#include <ctime>
#include <iostream>

#include "tests/data/edit_names.h"
#include "vitrum/core/error.h"
#include "vitrum/data/decode.h"

using namespace vitrum;

// Time on the processor, in milliseconds: what else the machine does counts less than on a clock.
static double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

static void measure(int rounds, std::span<char*> paths) {
  std::vector<std::vector<uint8_t>> files;
  for (const char* path : paths) files.push_back(read_bytes(path));
  AugmentParts parts = parse_augment("resized-crop-flip+rand-m9-mstd0.5-inc1");
  const Augment augment{
      .resized_crop = true,
      .flip = true,
      .policies = parts.policies,
      .erase = {.probability = 0.25, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}},
      .fill = {124, 116, 104}};
  const Preprocess preprocess{};
  Transform transform(preprocess, augment);
  std::vector<uint8_t> out(size_t{3} * 224 * 224);
  double best = 1e30, best_decode = 0;
  for (int round = 0; round < rounds; ++round) {
    double decode = 0, all = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      const SampleKey key{.epoch = round, .index = static_cast<int64_t>(i)};
      const double start = now();
      const Image image = decode_part(files[i], "image", [&](int height, int width) {
        return transform.part(height, width, key);
      });
      decode += now() - start;
      transform.apply(image, key, false, out);
      all += now() - start;
    }
    if (all < best) best = all, best_decode = decode;
  }
  const auto n = static_cast<double>(files.size());
  std::printf("{\"decode\":%.4f,\"augment\":%.4f,\"total\":%.4f}\n", best_decode / n,
              (best - best_decode) / n, best / n);
}

static void put(std::span<const uint8_t> pixels) {
  std::fwrite(pixels.data(), 1, pixels.size(), stdout);
  std::fflush(stdout);
}

template <class T>
static T next() {
  T value;
  std::cin >> value;
  return value;
}

static ByteColour read_colour() {
  ByteColour colour;
  for (uint8_t& channel : colour) channel = static_cast<uint8_t>(next<int>());
  return colour;
}

static Image read_pixels() {
  Image image;
  const int channels = next<int>(), height = next<int>(), width = next<int>();
  std::cin.get();
  image.reshape(channels, height, width);
  std::cin.read(reinterpret_cast<char*>(image.pixels.data()),
                static_cast<std::streamsize>(image.pixels.size()));
  return image;
}

static void serve_edit(Editor& editor) {
  Edit edit{.kind = edit_kind(next<std::string>()), .value = next<double>()};
  for (double& m : edit.matrix) m = next<double>();
  edit.filter = parse_filter(next<std::string>());
  edit.fill = read_colour();
  Image image = read_pixels();
  editor.apply(edit, image);
  put(image.pixels);
}

static void serve_op(Editor& editor) {
  const Policy policy = parse_policy(next<std::string>());
  const PolicyOp op = parse_op(next<std::string>());
  const double level = next<double>(), draw = next<double>();
  EditSettings settings{.filter = parse_filter(next<std::string>()), .fill = read_colour()};
  Image image = read_pixels();
  settings.height = image.height, settings.width = image.width;
  if (const auto edit = edit_at(policy, op, level, draw, settings)) editor.apply(*edit, image);
  put(image.pixels);
}

static void serve_crop() {
  Window window;
  std::cin >> window.top >> window.left >> window.height >> window.width;
  const Filter filter = parse_filter(next<std::string>());
  const int size = next<int>();
  std::string path;
  std::getline(std::cin >> std::ws, path);
  const Image part = decode_part(read_bytes(path), path, [&](int, int) { return window; });
  put(resize(part, size, size, filter).pixels);
}

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "time" && argc > 3) {
    measure(std::stoi(argv[2]), {argv + 3, argv + argc});
  } else if (mode == "serve") {
    Editor editor;
    for (std::string request; std::cin >> request;) {
      if (request == "edit") serve_edit(editor);
      if (request == "op") serve_op(editor);
      if (request == "crop") serve_crop();
    }
  } else {
    return std::fprintf(stderr, "usage: augment time ROUNDS IMAGE... | serve\n"), 2;
  }
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.kind());
}
