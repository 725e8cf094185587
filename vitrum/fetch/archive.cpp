#include "vitrum/fetch/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 512;
constexpr int kMaxFiles = 10'000;

// ustar's header; the fields that matter here.
struct Header {
  std::array<char, kBlock> bytes;

  std::string text(size_t at, size_t size) const {
    const std::string_view field(bytes.data() + at, size);
    return std::string(field.substr(0, field.find('\0')));
  }
  // Octal digits, padded with blanks or NUL; -1 where it is something else.
  int64_t octal(size_t at, size_t size) const {
    std::string digits = text(at, size);
    std::erase(digits, ' ');
    if (digits.size() > 12 || digits.find_first_not_of("01234567") != digits.npos) return -1;
    return digits.empty() ? 0 : std::stoll(digits, nullptr, 8);
  }
  std::string name() const {
    const std::string prefix = text(257, 5) == "ustar" ? text(345, 155) : "";
    return prefix.empty() ? text(0, 100) : prefix + "/" + text(0, 100);
  }
  int64_t size() const { return octal(124, 12); }
  char type() const { return bytes[156]; }
  bool is_end() const {
    return std::ranges::all_of(bytes, [](char c) { return c == 0; });
  }
  // The sum of all bytes, its own field counted as blanks.
  bool is_intact() const {
    int64_t sum = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
      sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(bytes[i]);
    return sum == octal(148, 8);
  }
};

class TarReader {
 public:
  TarReader(const std::string& path, std::string to, int64_t max_bytes)
      : path_(path),
        to_(std::move(to)),
        left_(max_bytes),
        file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) wrong("it cannot be opened");
  }

  void run() {
    Header header;
    for (int n = 0; read(header.bytes.data(), kBlock), !header.is_end(); ++n) {
      if (!header.is_intact()) wrong("a header's checksum is wrong");
      const int64_t size = header.size();
      if (size < 0 || size > left_ || n > kMaxFiles) wrong("it holds more than is allowed here");
      left_ -= size;
      take(header, size);
    }
  }

 private:
  [[noreturn]] void wrong(std::string_view why) { fail_input("{}: {}", path_, why); }

  void read(char* out, int64_t size) {
    if (gzread(file_.get(), out, static_cast<unsigned>(size)) != static_cast<int>(size))
      wrong("the archive is damaged or not complete");
  }

  void take(const Header& header, int64_t size) {
    switch (header.type()) {
      case '0':
      case '\0': return write(target(header.name()), size);
      case '5':  // folders appear with their files
      case 'x':
      case 'g': return copy(size, [](std::string_view) {});  // attributes that do not matter here
      default: wrong(fmt::format("'{}' is neither a file nor a folder", shown(header.name())));
    }
  }

  std::string target(const std::string& name) {
    const fs::path path(name);
    const bool outside = path.empty() || path.is_absolute() || name.find('\\') != name.npos ||
                         std::ranges::any_of(path, [](const fs::path& p) { return p == ".."; });
    if (outside) wrong(fmt::format("'{}' leads out of the folder", shown(name)));
    return (fs::path(to_) / path.lexically_normal()).string();
  }

  void write(const std::string& path, int64_t size) {
    ensure_directory(fs::path(path).parent_path().string());
    AtomicFile out(path);
    copy(size, [&](std::string_view bytes) { out.write(bytes); });
    out.commit();
  }

  // The contents, and the padding to a whole block behind them.
  template <class Sink>
  void copy(int64_t size, const Sink& sink) {
    std::array<char, 128 * kBlock> buffer;
    for (int64_t done = 0; done < size;) {
      const int64_t n = std::min<int64_t>(buffer.size(), size - done);
      read(buffer.data(), n);
      sink(std::string_view(buffer.data(), static_cast<size_t>(n)));
      done += n;
    }
    read(buffer.data(), (kBlock - size % kBlock) % kBlock);
  }

  std::string path_, to_;
  int64_t left_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

void unpack_tar_gz(const std::string& path, const std::string& to, int64_t max_bytes) {
  TarReader(path, to, max_bytes).run();
}

}  // namespace vitrum
