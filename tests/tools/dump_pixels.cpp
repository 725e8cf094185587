// For tools/check/check_codecs.py: each image as a line `height width`, then its planar RGB bytes;
// or a line `error text`. Names come a line each on standard input.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "vitrum/core/error.h"
#include "vitrum/data/decode.h"

int main() {
  for (std::string path; std::getline(std::cin, path);) {
    try {
      const vitrum::Image image = vitrum::read_image(path);
      fmt::print("{} {}\n", image.height, image.width);
      std::fwrite(image.pixels.data(), 1, image.pixels.size(), stdout);
    } catch (const vitrum::Error& error) {
      fmt::print("error {}\n", error.what());
    }
    std::fflush(stdout);
  }
}
