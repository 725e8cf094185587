#include "vitrum/train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/train/event.pb.h"

namespace vitrum {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr size_t kFlushBytes = 1 << 16;

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}

// Little-endian, as the machine is.
template <class T>
std::string bytes_of(T x) {
  return std::string(reinterpret_cast<const char*>(&x), sizeof x);
}

std::string record_of(std::string_view data) {
  const std::string length = bytes_of<uint64_t>(data.size());
  return length + bytes_of(masked_crc32c(length)) + std::string(data) +
         bytes_of(masked_crc32c(data));
}

// Takes the next record off `rest` and gives its data; nothing at the end and where the record is
// torn or damaged.
std::optional<std::string_view> take_record(std::string_view& rest) {
  constexpr size_t kLength = sizeof(uint64_t), kCrc = sizeof(uint32_t), kFrame = kLength + 2 * kCrc;
  if (rest.size() < kFrame) return std::nullopt;
  const auto crc_at = [&](size_t i) {
    uint32_t crc;
    std::memcpy(&crc, rest.data() + i, kCrc);
    return crc;
  };
  uint64_t length;
  std::memcpy(&length, rest.data(), kLength);
  if (length > rest.size() - kFrame || crc_at(kLength) != masked_crc32c(rest.substr(0, kLength)))
    return std::nullopt;
  const std::string_view data = rest.substr(kLength + kCrc, length);
  if (crc_at(kLength + kCrc + length) != masked_crc32c(data)) return std::nullopt;
  rest.remove_prefix(kFrame + length);
  return data;
}

using Keep = std::function<bool(std::string_view tag, int64_t step)>;

// The records that stay, spelled as they were unless one loses some of its values.
std::string filtered(std::string_view text, const Keep& keep) {
  std::string kept;
  proto::Event event;
  while (const auto data = take_record(text)) {
    if (data->size() > INT_MAX ||
        !event.ParseFromArray(data->data(), static_cast<int>(data->size())))
      break;
    auto& values = *event.mutable_summary()->mutable_value();
    const int before = values.size();
    values.erase(std::remove_if(values.begin(), values.end(),
                                [&](const auto& v) { return !keep(v.tag(), event.step()); }),
                 values.end());
    if (values.size() == before)
      kept += record_of(*data);
    else if (!values.empty())
      kept += record_of(event.SerializeAsString());
  }
  return kept;
}

std::vector<std::filesystem::path> event_files(const std::string& dir) {
  namespace fs = std::filesystem;
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; at != end; at.increment(error))
    if (at->path().filename().string().starts_with(kPrefix) && at->is_regular_file(error))
      found.push_back(at->path());
  if (error && error != std::errc::no_such_file_or_directory)
    fail_input("cannot read the directory '{}': {}", dir, error.message());
  return found;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads files in the order of their names: a new one must come after all others,
// whatever the clock says.
int64_t next_time(const std::string& dir) {
  auto time = static_cast<int64_t>(now());
  for (const auto& path : event_files(dir)) {
    const std::string name = path.filename().string().substr(kPrefix.size());
    int64_t taken = 0;
    std::from_chars(name.data(), name.data() + name.size(), taken);
    if (taken < INT64_MAX) time = std::max(time, taken + 1);
  }
  return time;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::replace(name.begin(), name.end(), '/', '_');
  return name.data();
}

std::string new_event_path(const std::string& dir) {
  ensure_directory(dir);
  return fmt::format("{}/{}{:010}.{}", dir, kPrefix, next_time(dir), host_name());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

EventWriter::EventWriter(const std::string& dir) : file_(new_event_path(dir), O_CREAT | O_EXCL) {
  proto::Event event;
  event.set_wall_time(now());
  event.set_file_version("brain.Event:2");
  pending_ = record_of(event.SerializeAsString());
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const Error&) {  // the caller who cares has called flush()
  }
}

void EventWriter::scalar(std::string_view tag, int64_t step, double value, double wall_time) {
  proto::Event event;
  event.set_wall_time(wall_time == 0 ? now() : wall_time);
  event.set_step(step);
  auto& entry = *event.mutable_summary()->add_value();
  entry.set_tag(std::string(tag));
  entry.set_simple_value(static_cast<float>(value));
  pending_ += record_of(event.SerializeAsString());
  if (pending_.size() >= kFlushBytes) flush();
}

void EventWriter::flush() {
  const std::string records = std::exchange(pending_, {});
  file_.write(records);
}

void filter_events(const std::string& dir, const Keep& keep) {
  for (const auto& path : event_files(dir)) {
    constexpr size_t kMostBytes = size_t{4} << 30;  // some hundred bytes a step
    const std::string before = read_file(path.string(), kMostBytes);
    const std::string after = filtered(before, keep);
    if (after != before) write_file_atomic(path.string(), after);
  }
}

void truncate_after(const std::string& dir, int64_t step) {
  filter_events(dir, [step](std::string_view, int64_t at) { return at <= step; });
}

}  // namespace vitrum
