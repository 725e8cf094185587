// augment serve: answers requests on stdin with pixels on stdout, for tools/check_augment.py:
//   edit KIND VALUE M0 .. M5 FILTER RED GREEN BLUE CHANNELS HEIGHT WIDTH, then pixels
#include <cstdio>
#include <iostream>

#include "vitrum/core/error.h"
#include "vitrum/data/edit.h"

using namespace vitrum;

static void put(std::span<const uint8_t> pixels) {
  std::fwrite(pixels.data(), 1, pixels.size(), stdout);
  std::fflush(stdout);
}

static Image read_pixels() {
  int channels, height, width;
  std::cin >> channels >> height >> width;
  std::cin.get();
  Image image;
  image.reshape(channels, height, width);
  std::cin.read(reinterpret_cast<char*>(image.pixels.data()),
                static_cast<std::streamsize>(image.pixels.size()));
  return image;
}

static void serve_edit(Editor& editor) {
  std::string kind, filter;
  Edit edit;
  std::cin >> kind >> edit.value;
  for (double& m : edit.matrix) std::cin >> m;
  std::cin >> filter;
  for (uint8_t& channel : edit.fill) {
    int level;
    std::cin >> level;
    channel = static_cast<uint8_t>(level);
  }
  edit.kind = parse_edit(kind), edit.filter = parse_filter(filter);
  Image image = read_pixels();
  editor.apply(edit, image);
  put(image.pixels);
}

int main(int, char**) try {
  Editor editor;
  for (std::string request; std::cin >> request;) serve_edit(editor);
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.kind());
}
