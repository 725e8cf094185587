// preprocess MODEL time ROUNDS IMAGE...: milliseconds of decoding and of resizing and cropping, per
// image on one thread, the best of the rounds. preprocess MODEL serve: answers requests on stdin
// with pixels on stdout, for tools/check/check_pillow.py:
//   file EXIF HEIGHT WIDTH CHANNELS FILTER CROP_PCT RESIZE CROP FLOOR PATH      the whole way;
//   CROP is a number of CropMode, and borders have the colour of ImageNet's mean
//   resize CHANNELS H W NEW_H NEW_W FILTER TOP LEFT HEIGHT WIDTH, then pixels    a window of a
//   resized image
#include <cstdio>
#include <ctime>
#include <iostream>

#include "vitrum/core/error.h"
#include "vitrum/data/decode.h"
#include "vitrum/infer/model_program.h"

using namespace vitrum;

// Time on the processor, in milliseconds: what else the machine does counts less than on a clock.
static double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

static void measure(const ModelSpec& model, int rounds, std::span<char*> paths) {
  std::vector<std::vector<uint8_t>> files;
  for (const char* path : paths) files.push_back(read_bytes(path));
  Preprocessor preprocessor(preprocess_of(model));
  std::vector<uint8_t> out(preprocessor.bytes());
  double best = 1e30, best_decode = 0;
  for (int round = 0; round < rounds; ++round) {
    double decode = 0, all = 0;
    for (const auto& file : files) {
      const double start = now();
      const Image image = decode_image(file, "image");
      decode += now() - start;
      preprocessor.apply(image, out);
      all += now() - start;
    }
    if (all < best) best = all, best_decode = decode;
  }
  const auto n = static_cast<double>(files.size());
  std::printf("{\"decode\":%.4f,\"resize\":%.4f,\"total\":%.4f}\n", best_decode / n,
              (best - best_decode) / n, best / n);
}

static void put(std::span<const uint8_t> pixels) {
  std::fwrite(pixels.data(), 1, pixels.size(), stdout);
  std::fflush(stdout);
}

static void serve_file() {
  Preprocess p;
  bool exif = false;
  int crop = 0;
  std::string filter, path;
  std::cin >> exif >> p.height >> p.width >> p.channels >> filter >> p.crop_pct >> p.resize >>
      crop >> p.crop_floor >> std::ws;
  std::getline(std::cin, path);
  p.interpolation = parse_filter(filter);
  p.crop_mode = static_cast<CropMode>(crop);
  p.border = {124, 116, 104};
  Preprocessor preprocessor(p);
  std::vector<uint8_t> out(preprocessor.bytes());
  preprocessor.apply(read_image(path, {.exif_orientation = exif}), out);
  put(out);
}

static void serve_resize(Resizer& resizer) {
  Image in;
  int channels, height, width, new_height, new_width;
  Window w;
  std::string filter;
  std::cin >> channels >> height >> width >> new_height >> new_width >> filter >> w.top >> w.left >>
      w.height >> w.width;
  std::cin.get();
  in.reshape(channels, height, width);
  std::cin.read(reinterpret_cast<char*>(in.pixels.data()),
                static_cast<std::streamsize>(in.pixels.size()));
  std::vector<uint8_t> out(static_cast<size_t>(channels) * static_cast<size_t>(w.height) *
                           static_cast<size_t>(w.width));
  resizer.resize(in, new_height, new_width, parse_filter(filter), w, out.data());
  put(out);
}

int main(int argc, char** argv) try {
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "time" && argc > 4) {
    measure(resolve_model(argv[1]), std::stoi(argv[3]), {argv + 4, argv + argc});
  } else if (mode == "serve") {
    Resizer resizer;
    for (std::string request; std::cin >> request;)
      request == "file" ? serve_file() : serve_resize(resizer);
  } else {
    return std::fprintf(stderr, "usage: preprocess MODEL time ROUNDS IMAGE... | serve\n"), 2;
  }
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.kind());
}
