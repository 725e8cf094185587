// TensorBoard event files: records of (length, masked crc32c of it, protobuf Event, masked crc32c
// of it).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "vitrum/core/files.h"

namespace vitrum {

uint32_t crc32c(std::string_view bytes);         // Castagnoli polynomial
uint32_t masked_crc32c(std::string_view bytes);  // as the record format wants it

class EventWriter {
 public:
  // Starts a new `events.out.tfevents.<time>.<host>` in `dir`; TensorBoard reads all of a directory
  // as one run.
  explicit EventWriter(const std::string& dir);
  ~EventWriter();  // flushes; call flush() to hear of errors

  // `wall_time` in seconds since 1970; 0 means now.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time = 0);
  void flush();

  const std::string& path() const { return file_.path(); }

 private:
  OutputFile file_;
  std::string pending_;
};

// Rewrites, atomically, those event files of `dir` that hold scalars which `keep` refuses. What
// follows a torn or damaged record is unreadable to TensorBoard too, and dropped.
void filter_events(const std::string& dir,
                   const std::function<bool(std::string_view tag, int64_t step)>& keep);

// Before resuming at `step`: drops what will be written again.
void truncate_after(const std::string& dir, int64_t step);

}  // namespace vitrum
