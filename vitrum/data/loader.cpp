#include "vitrum/data/loader.h"

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "vitrum/core/error.h"
#include "vitrum/data/epoch_order.h"

namespace vitrum {
namespace {

// Samples a worker takes at a time: several workers share a batch, so that the first one is ready
// soon. Files, which take milliseconds to decode, are taken one by one.
int64_t chunk_of(const Dataset& dataset) { return dataset.image_size().height == 0 ? 1 : 32; }

}  // namespace

struct Loader::State {
  // The b-th batch that is taken is prepared in slot b % slots.size().
  struct Slot {
    Batch batch;
    int64_t chunks_left = 0;
    int64_t failed_chunk =
        0;  // the first one, so that the error reported does not depend on timing
    std::exception_ptr error;
  };

  State(const Dataset& data, const LoaderConfig& options)
      : dataset(data), config(options), slots(static_cast<size_t>(options.prefetch)) {
    if (!config.rows) sample_bytes = Preprocessor(config.preprocess).bytes();
    batches = (dataset.size() + config.batch_size - 1) / config.batch_size;
    chunk_size = chunk_of(dataset);
    chunks_per_batch = (config.batch_size + chunk_size - 1) / chunk_size;
    taken = taken_before(batches);
    order.resize(static_cast<size_t>(dataset.size()));
    if (config.shuffle) groups = dataset.groups();
    halt();
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    work_ready.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void start_workers() {
    for (int i = 0; i < config.threads; ++i) workers.emplace_back([this] { work(); });
  }

  void halt() {
    next_batch = taken, next_chunk = taken * chunks_per_batch;
  }  // nothing more to take

  // Batches that are taken are counted too: those of numbers below `number`, and the number of one.
  int64_t taken_before(int64_t number) const {
    const auto& [every, first, count] = config.turns;
    return number / every * count + std::clamp<int64_t>(number % every - first, 0, count);
  }
  int64_t number_of(int64_t own) const {
    const auto& [every, first, count] = config.turns;
    return own / count * every + first + own % count;
  }

  // The images of an epoch that are taken here, from a batch on.
  std::vector<int64_t> own_order(int64_t first_batch) const {
    std::vector<int64_t> images;
    int64_t last = -1;
    for (int64_t own = taken_before(first_batch); own < taken; ++own) {
      const int64_t first = number_of(own) * config.batch_size;
      const int64_t end = std::min(first + config.batch_size, dataset.size());
      for (int64_t place = first / config.repeat; place * config.repeat < end; ++place)
        if (std::exchange(last, place) != place)
          images.push_back(order[static_cast<size_t>(place)]);
    }
    return images;
  }

  void shape(Batch& batch) const {
    const auto n = static_cast<size_t>(config.batch_size);
    if (batch.storage.size() != n * sample_bytes) batch.storage = allocate_host(n * sample_bytes);
    batch.rows.resize(config.rows ? n : 0);
    batch.labels.resize(n);
    batch.indices.resize(n);
    batch.mirrored.assign(n, 0);
    batch.mix.resize(config.mix.any() ? n : 0);
    if (config.tolerant) batch.errors.assign(n, "");
    if (config.preprocess.max_patches > 0) batch.sizes.assign(n, {});
  }

  bool mild() const { return epoch >= config.strong_epochs; }
  void draw_mix(int64_t number, Batch& batch) const {
    const MixConfig mix = mild() ? MixConfig{} : config.mix;
    const uint64_t key = static_cast<uint64_t>(epoch) << 32 | static_cast<uint64_t>(number);
    vitrum::draw_mix(mix, batch.count, config.preprocess.height, config.preprocess.width,
                     PhiloxStream(config.seed, kMixStream, key), batch.mix);
  }

  Slot& slot_of(int64_t batch) { return slots[static_cast<size_t>(batch) % slots.size()]; }
  int64_t last_chunk() const {  // chunks of batches for which there is room
    return std::min(taken, next_batch + static_cast<int64_t>(slots.size())) * chunks_per_batch;
  }

  void work();
  void fill(int64_t chunk, Transform& transform, Image& image);
  void fill_sample(Batch& batch, int64_t row, int64_t position, Transform& transform, Image& image);

  const Dataset& dataset;
  const LoaderConfig config;
  size_t sample_bytes = 0;
  int64_t batches = 0, taken = 0, chunk_size = 1, chunks_per_batch = 0;

  // Fixed while an epoch runs.
  int64_t epoch = 0;
  std::vector<int64_t> order;
  std::vector<int32_t> groups;  // the data set's

  std::mutex mutex;  // guards what follows
  std::condition_variable work_ready, batch_ready;
  std::vector<Slot> slots;
  int64_t next_chunk = 0, next_batch = 0;  // to be taken by a worker, by next()
  int busy = 0;
  bool stopping = false;
  std::vector<std::thread> workers;
};

void Loader::State::work() {
  Transform transform(config.preprocess, config.augment);
  Image image;
  std::unique_lock lock(mutex);
  while (true) {
    work_ready.wait(lock, [&] { return stopping || next_chunk < last_chunk(); });
    if (stopping) return;
    const int64_t chunk = next_chunk++;
    ++busy;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(chunk, transform, image);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    --busy;
    Slot& slot = slot_of(chunk / chunks_per_batch);
    if (error && (!slot.error || chunk < slot.failed_chunk))
      slot.error = error, slot.failed_chunk = chunk;
    if (--slot.chunks_left == 0 || busy == 0) batch_ready.notify_one();
  }
}

void Loader::State::fill(int64_t chunk, Transform& transform, Image& image) {
  const int64_t own = chunk / chunks_per_batch, begin = chunk % chunks_per_batch * chunk_size;
  const int64_t end = std::min(begin + chunk_size, config.batch_size), number = number_of(own);
  Batch& batch = slot_of(own).batch;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t position = number * config.batch_size + row;
    const auto r = static_cast<size_t>(row);
    const auto blacken = [&] {
      if (config.rows) batch.rows[r] = {};
      std::ranges::fill(batch.pixels().subspan(r * sample_bytes, sample_bytes), uint8_t{0});
    };
    if (position >= dataset.size()) {
      blacken();
      batch.labels[r] = 0, batch.indices[r] = -1;
      continue;
    }
    try {
      fill_sample(batch, row, position, transform, image);
    } catch (const Error& error) {
      if (!config.tolerant || error.kind() != ErrorKind::kInput) throw;
      batch.errors[r] = error.what();
      blacken();
    }
  }
}

void Loader::State::fill_sample(Batch& batch, int64_t row, int64_t position, Transform& transform,
                                Image& image) {
  const auto r = static_cast<size_t>(row);
  const int64_t index = order[static_cast<size_t>(position / config.repeat)];
  const SampleKey key{config.seed, epoch, index, static_cast<int>(position % config.repeat)};
  batch.labels[r] = dataset.label(index), batch.indices[r] = index;
  batch.mirrored[r] = transform.mirrors(key);
  if (config.rows) return static_cast<void>(batch.rows[r] = transform.row(key, mild()));
  dataset.read_part(
      index, [&](int height, int width) { return transform.part(height, width, key); }, image);
  try {
    const InputSize size =
        transform.apply(image, key, mild(), batch.pixels().subspan(r * sample_bytes, sample_bytes));
    if (!batch.sizes.empty()) batch.sizes[r] = size;
  } catch (const Error& error) {
    throw Error(error.kind(), dataset.name(index) + ": " + error.what());
  }
}

Loader::Loader(const Dataset& dataset, const LoaderConfig& config) {
  if (config.batch_size < 1 || config.batch_size > 1 << 20) {
    fail_usage("batch size {}; expected 1 to {}", config.batch_size, 1 << 20);
  }
  if (dataset.size() < 1 || dataset.size() > int64_t{UINT32_MAX})
    fail_input("a data set of {} images", dataset.size());
  assert(config.threads >= 1 && config.prefetch >= 1 && config.repeat >= 1);
  assert(config.turns.count >= 1 && config.turns.first + config.turns.count <= config.turns.every);
  assert(!config.rows || runs_on_device(config.augment));
  const Transform checked(config.preprocess, config.augment);  // fails here rather than in a worker
  state_ = std::make_unique<State>(dataset, config);
  state_->start_workers();
}

Loader::~Loader() = default;

int64_t Loader::batches() const { return state_->batches; }
const LoaderConfig& Loader::config() const { return state_->config; }

void Loader::start(int64_t epoch, int64_t first_batch) {
  State& s = *state_;
  assert(epoch >= 0 && first_batch >= 0 && first_batch <= s.batches);
  std::unique_lock lock(s.mutex);
  s.halt();
  s.batch_ready.wait(lock, [&] { return s.busy == 0; });
  s.epoch = epoch;
  std::iota(s.order.begin(), s.order.end(), int64_t{0});
  const Lanes lanes{
      .count = s.config.turns.every, .batch = s.config.batch_size, .repeat = s.config.repeat};
  if (s.config.shuffle) shuffle_epoch(s.order, s.groups, s.config.seed, epoch, lanes);
  s.dataset.will_read(s.own_order(first_batch));
  for (State::Slot& slot : s.slots) {
    s.shape(slot.batch);
    slot.chunks_left = s.chunks_per_batch, slot.error = nullptr;
  }
  s.next_batch = s.taken_before(first_batch), s.next_chunk = s.next_batch * s.chunks_per_batch;
  lock.unlock();
  s.work_ready.notify_all();
}

bool Loader::next(Batch& batch) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.next_batch >= s.taken) return false;
  State::Slot& slot = s.slot_of(s.next_batch);
  s.batch_ready.wait(lock, [&] { return slot.chunks_left == 0; });
  if (slot.error) std::rethrow_exception(slot.error);
  std::swap(batch, slot.batch);
  batch.number = s.number_of(s.next_batch);
  batch.count =
      std::min(s.config.batch_size, s.dataset.size() - batch.number * s.config.batch_size);
  if (s.config.mix.any()) s.draw_mix(batch.number, batch);
  s.shape(slot.batch);
  slot.chunks_left = s.chunks_per_batch;
  ++s.next_batch;
  lock.unlock();
  s.work_ready.notify_all();
  return true;
}

}  // namespace vitrum
