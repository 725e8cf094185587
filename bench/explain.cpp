// What explaining one photo costs, as a multiple of a plain forward pass of the same model on the
// same threads, in turns in one process: bench_explain MODEL IMAGE [THREADS [ROUNDS]]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/explain/attention_program.h"
#include "vitrum/explain/explain_photo.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {
namespace {

struct Seconds {
  double wall = 0, cpu = 0;
};

Seconds now() {
  timespec cpu;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(wall).count(),
          static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
}

void run(const std::string& model, const std::string& path, int threads, int rounds) {
  Predictor predictor(model, {.device = "cpu", .threads = threads, .precision = DType::kF32});
  AttentionProgram program(predictor.model(), predictor.store(), {.gradient = true});
  const Preprocess preprocess = preprocess_of(predictor.model());
  const std::string file = read_file(path);
  const ExplainedPhoto photo{
      .image = decode_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, path),
      .name = "photo"};
  Preprocessor preprocessor(preprocess);
  std::vector<uint8_t> pixels(preprocessor.bytes());
  std::vector<float> logits(static_cast<size_t>(predictor.classes()));
  ThreadPool pool(threads);

  std::map<std::string, std::vector<Seconds>> times;
  const auto timed = [&](const std::string& part, const auto& work) {
    const Seconds start = now();
    work();
    const Seconds end = now();
    times[part].push_back({end.wall - start.wall, end.cpu - start.cpu});
  };
  for (int round = 0; round < rounds; ++round) {
    std::vector<LayerAttention> layers;
    timed("forward", [&] {
      preprocessor.apply(photo.image, pixels);
      predictor.run(pixels, logits, {});
    });
    timed("everything", [&] {
      timed("  model", [&] {
        preprocessor.apply(photo.image, pixels);
        program.run(pixels.data());
        program.run_backward(0);
        layers = program.all();
      });
      timed("  pictures", [&] {
        pool.run(static_cast<int64_t>(layers.size()), [&](int64_t i, int) {
          mean_distances(layers[static_cast<size_t>(i)], preprocess.height, preprocess.width);
        });
        const Explanation found =
            explain_photo(photo, preprocess, layers, {.target = "class"}, pool);
        for (const NamedPicture& p : found.pictures) encode_png(p.image, pool);
      });
    });
  }
  const auto least = [&](const std::string& part, double Seconds::*which) {
    return std::ranges::min(times[part], {}, which).*which;
  };
  for (const auto& [part, all] : times) {
    const double wall = least(part, &Seconds::wall), cpu = least(part, &Seconds::cpu);
    fmt::print("{:12} {:7.1f} ms ({:.2f}x), processor {:7.1f} ms ({:.2f}x)\n", part, 1e3 * wall,
               wall / least("forward", &Seconds::wall), 1e3 * cpu,
               cpu / least("forward", &Seconds::cpu));
  }
}

}  // namespace
}  // namespace vitrum

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print("bench_explain MODEL IMAGE [THREADS [ROUNDS]]\n"), 2;
  try {
    vitrum::run(argv[1], argv[2], argc > 3 ? std::stoi(argv[3]) : 2,
                argc > 4 ? std::stoi(argv[4]) : 5);
  } catch (const std::exception& error) {
    return fmt::print(stderr, "{}\n", error.what()), 1;
  }
}
