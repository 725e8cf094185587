// A program outside the project that uses the installed library.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "vitrum/core/buffer.h"
#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/shape.h"

static void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

int main() {
  const vitrum::Shape shape{2, 197, 192};
  require(shape.numel() == 2 * 197 * 192, "number of elements");
  require(shape.str() == "(2, 197, 192)", "text of a shape");
  require(vitrum::allocate_host(64).size() == 64, "size of a buffer");
  require(vitrum::available_cores() >= 1, "cores");
  try {
    vitrum::fail_input("{}: no such file", "a.png");
  } catch (const vitrum::Error& error) {
    require(error.kind() == vitrum::ErrorKind::kInput, "kind of the error");
    require(error.what() == std::string_view("a.png: no such file"), "text of the error");
    std::puts("the installed library works");
    return 0;
  }
}
