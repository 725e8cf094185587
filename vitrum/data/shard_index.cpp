#include "vitrum/data/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/sha.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/tar_header.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/decode.h"

namespace vitrum {
namespace {

constexpr std::string_view kFirstLine = "vitrum shards 1";

class IndexParser {
 public:
  IndexParser(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  ShardIndex run() {
    check_digest();
    if (const std::string_view first = line(); first != kFirstLine)
      wrong(fmt::format("begins with '{}'; this version reads '{}'", shown(first), kFirstLine));
    ShardIndex index;
    for (int64_t n = count("classes"); n > 0; --n) index.classes.push_back(class_name());
    for (int64_t n = count("shards"); n > 0; --n) index.shards.push_back(shard());
    for (int64_t n = count("samples"); n > 0; --n) index.samples.push_back(sample(index));
    if (!rest_.empty()) wrong("has lines behind the last sample");
    if (names_.size() != index.shards.size()) wrong("has a shard twice");
    return index;
  }

 private:
  [[noreturn]] void wrong(const std::string& why) const {
    fail_input("{}: line {} {}; the index is damaged: remove it, or pack the data anew", path_,
               number_, why);
  }

  // The last line, of which nothing is left over.
  void check_digest() {
    constexpr std::string_view kWord = "sha256 ";
    const size_t all = rest_.size(), last = all < 1 ? 0 : rest_.rfind('\n', all - 2) + 1;
    const std::string_view end = rest_.substr(last);
    if (!end.starts_with(kWord) || !end.ends_with('\n'))
      fail_input("{}: has no digest at its end: it is cut short, or no index of shards", path_);
    if (end.substr(kWord.size(), end.size() - kWord.size() - 1) != sha256(rest_.substr(0, last)))
      fail_input("{}: its digest is wrong: the index is damaged; pack the data anew", path_);
    rest_ = rest_.substr(0, last);
  }

  std::string_view line() {
    ++number_;
    const size_t end = rest_.find('\n');
    if (end == rest_.npos) wrong("is missing");
    const std::string_view text = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return text;
  }

  // Takes the word before the next blank of `text`.
  int64_t take_number(std::string_view& text) const {
    int64_t n = 0;
    const size_t blank = text.find(' ');
    if (blank == text.npos) wrong("has too few fields");
    const auto [end, error] = std::from_chars(text.data(), text.data() + blank, n);
    if (error != std::errc() || end != text.data() + blank)
      wrong("has no number where one belongs");
    text.remove_prefix(blank + 1);
    return n;
  }

  int64_t count(std::string_view what) {
    std::string_view text = line();
    const size_t blank = std::min(text.find(' '), text.size());
    const std::string tail = std::string(text.substr(std::min(blank + 1, text.size()))) + " ";
    std::string_view digits = tail;
    if (text.substr(0, blank) != what) wrong(fmt::format("should count the {}", what));
    const int64_t n = take_number(digits);
    // Each takes a line, however short.
    if (n < 0 || n > static_cast<int64_t>(rest_.size()))
      wrong(fmt::format("counts {} {}", n, what));
    return n;
  }

  std::string class_name() {
    const std::string_view name = line();
    if (!fits_a_line(name) || !is_utf8(name)) wrong("is no name of a class");
    return std::string(name);
  }

  ShardFile shard() {
    std::string_view text = line();
    ShardFile file;
    file.size = take_number(text), file.modified = take_number(text);
    const size_t blank = text.find(' ');
    if (blank == text.npos) wrong("has too few fields");
    if (const std::string_view digest = text.substr(0, blank); digest != "-") {
      const bool hex =
          digest.size() == 64 && digest.find_first_not_of("0123456789abcdef") == digest.npos;
      if (!hex) wrong("has no digest where one belongs");
      file.sha256 = digest;
    }
    file.name = text.substr(blank + 1);
    if (file.size < 0 || !fits_a_line(file.name) || file.name.starts_with('.') ||
        file.name.find('/') != file.name.npos)
      wrong(fmt::format("'{}' is no shard", shown(file.name)));
    names_.insert(file.name);
    return file;
  }

  ShardSample sample(const ShardIndex& index) {
    std::string_view text = line();
    ShardSample s;
    const int64_t shard = take_number(text);
    s.at = take_number(text), s.size = take_number(text);
    const int64_t label = take_number(text);
    s.name = text;
    if (shard < 0 || shard >= static_cast<int64_t>(index.shards.size()))
      wrong(fmt::format("has shard {} of {}", shard, index.shards.size()));
    if (label < -1 || label >= static_cast<int64_t>(index.classes.size()))
      wrong(fmt::format("has label {} of {} classes", label, index.classes.size()));
    const int64_t end = index.shards[static_cast<size_t>(shard)].size;
    if (s.at < kTarBlock || s.at > end || s.size < 0 || s.size > end - s.at ||
        s.size > kMaxImageFile)
      wrong(fmt::format("has {} bytes at byte {} of a shard of {}", s.size, s.at, end));
    if (!fits_a_line(s.name)) wrong("has a name that is none");
    s.shard = static_cast<int32_t>(shard), s.label = static_cast<int32_t>(label);
    return s;
  }

  std::string_view rest_;
  const std::string& path_;
  int64_t number_ = 0;  // of the line taken last
  std::set<std::string> names_;
};

}  // namespace

bool fits_a_line(std::string_view name) {
  return !name.empty() &&
         std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

std::string to_text(const ShardIndex& index) {
  std::string out = fmt::format("{}\nclasses {}\n", kFirstLine, index.classes.size());
  for (const std::string& name : index.classes) out += name + "\n";
  out += fmt::format("shards {}\n", index.shards.size());
  for (const ShardFile& s : index.shards)
    out +=
        fmt::format("{} {} {} {}\n", s.size, s.modified, s.sha256.empty() ? "-" : s.sha256, s.name);
  out += fmt::format("samples {}\n", index.samples.size());
  for (const ShardSample& s : index.samples)
    out += fmt::format("{} {} {} {} {}\n", s.shard, s.at, s.size, s.label, s.name);
  return out + fmt::format("sha256 {}\n", sha256(out));
}

ShardIndex parse_shard_index(std::string_view text, const std::string& path) {
  return IndexParser(text, path).run();
}

}  // namespace vitrum
