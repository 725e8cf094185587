#include "vitrum/fetch/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/tar_header.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxFiles = 10'000;

class Unpacker {
 public:
  Unpacker(const std::string& path, std::string to, int64_t max_bytes)
      : path_(path),
        to_(std::move(to)),
        left_(max_bytes),
        file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) wrong("it cannot be opened");
  }

  void run() {
    TarHeader header;
    for (int n = 0; read(header.bytes.data(), kTarBlock), !header.is_end(); ++n) {
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

  void take(const TarHeader& header, int64_t size) {
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
    std::array<char, 128 * kTarBlock> buffer;
    for (int64_t done = 0; done < size;) {
      const int64_t n = std::min<int64_t>(buffer.size(), size - done);
      read(buffer.data(), n);
      sink(std::string_view(buffer.data(), static_cast<size_t>(n)));
      done += n;
    }
    read(buffer.data(), tar_padding(size));
  }

  std::string path_, to_;
  int64_t left_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

void unpack_tar_gz(const std::string& path, const std::string& to, int64_t max_bytes) {
  Unpacker(path, to, max_bytes).run();
}

}  // namespace vitrum
