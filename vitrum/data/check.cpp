#include "vitrum/data/check.h"

#include <atomic>
#include <exception>
#include <mutex>

#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/sha.h"

namespace vitrum {
namespace {

std::string digest_of(const Image& image) {
  const std::string size = fmt::format("{}x{}x{}:", image.channels, image.height, image.width);
  return sha256(size + std::string(image.pixels.begin(), image.pixels.end()));
}

CheckedImage look_at(const Dataset& dataset, int64_t index, bool digest, Image& scratch) {
  try {
    dataset.read_into(index, scratch);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInput) throw;
    return {.error = error.what(), .digest = {}};
  }
  return {.error = {}, .digest = digest ? digest_of(scratch) : ""};
}

}  // namespace

std::vector<CheckedImage> check_images(const Dataset& dataset, const CheckOptions& options) {
  std::vector<CheckedImage> all(static_cast<size_t>(dataset.size()));
  ThreadPool pool(options.threads > 0 ? options.threads : available_cores());
  std::vector<Image> scratch(static_cast<size_t>(pool.threads()));
  std::atomic<int64_t> done = 0;
  std::exception_ptr failure;
  std::mutex failing;
  pool.run(dataset.size(), [&](int64_t i, int thread) {
    try {
      all[static_cast<size_t>(i)] =
          look_at(dataset, i, options.digests, scratch[static_cast<size_t>(thread)]);
      ++done;
      if (thread == 0 && options.progress) options.progress(done);
    } catch (...) {
      const std::scoped_lock lock(failing);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return all;
}

}  // namespace vitrum
