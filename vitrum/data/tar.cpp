#include "vitrum/data/tar.h"

#include <algorithm>
#include <charconv>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

constexpr int64_t kMaxExtension = 1 << 20;  // bytes of pax records, or of a long name

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && n >= 0 ? std::optional(n) : std::nullopt;
}

const char* kind_of(char type) {
  switch (type) {
    case '1':
    case '2': return "a link";
    case '3':
    case '4': return "a device";
    case '6': return "a pipe";
    case 'S': return "a sparse file";
    default: return "neither a file nor a folder";
  }
}

bool leads_out(std::string_view name) {
  if (name.starts_with('/')) return true;
  while (!name.empty()) {
    const size_t end = std::min(name.find('/'), name.size());
    if (name.substr(0, end) == "..") return true;
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return false;
}

}  // namespace

struct TarReader::Extended {
  std::optional<std::string> name;
  std::optional<int64_t> size;
  bool any = false;
};

TarHeader TarReader::header_at(int64_t at) const {
  TarHeader header;
  if (file_.size() - at < kTarBlock)
    fail_input(
        "{}: ends at byte {} without the mark of an archive's end; it is cut short, or no "
        "tar archive",
        file_.path(), file_.size());
  file_.read(at, header.bytes);
  if (!header.is_end() && !header.is_intact())
    fail_input(
        "{}: the header at byte {} is damaged, or this is no tar archive (a compressed one "
        "must be unpacked first)",
        file_.path(), at);
  return header;
}

std::string TarReader::extension(const TarHeader& header) const {
  const int64_t size = header.size();
  if (size < 0 || size > kMaxExtension || size > file_.size() - at_ - kTarBlock)
    fail_input("{}: the extended header at byte {} claims {} bytes", file_.path(), at_, size);
  std::string text(static_cast<size_t>(size), '\0');
  file_.read(at_ + kTarBlock, text);
  return text;
}

// Lines "LENGTH KEY=VALUE\n", the length counting all of the line.
void TarReader::take_pax(const std::string& records, Extended& extended) const {
  for (std::string_view rest = records; !rest.empty();) {
    const size_t blank = rest.find(' ');
    const auto length = whole_number(rest.substr(0, std::min(blank, rest.size())));
    if (!length || *length <= static_cast<int64_t>(blank) + 1 ||
        *length > static_cast<int64_t>(rest.size()) ||
        rest[static_cast<size_t>(*length) - 1] != '\n')
      fail_input("{}: the extended header at byte {} is damaged", file_.path(), at_);
    const auto end = static_cast<size_t>(*length);
    const std::string_view record = rest.substr(blank + 1, end - blank - 2);
    const size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals),
                           value = record.substr(std::min(equals + 1, record.size()));
    if (key == "path") extended.name = value;
    if (key == "size") extended.size = whole_number(value).value_or(-1);
    if (key.starts_with("GNU.sparse"))
      fail_input("{}: the member at byte {} is a sparse file; pack it anew without that",
                 file_.path(), at_);
    rest.remove_prefix(end);
  }
}

TarMember TarReader::member_of(const TarHeader& header, const Extended& extended) const {
  TarMember member{.name = extended.name.value_or(header.name()),
                   .at = at_ + kTarBlock,
                   .size = extended.size.value_or(header.size())};
  while (member.name.starts_with("./")) member.name.erase(0, 2);
  const std::string name = shown(member.name);
  const bool folder = header.type() == '5' || (header.is_file() && member.name.ends_with('/'));
  if (!header.is_file() && !folder)
    fail_input("{}: '{}' is {}; only files can be read from a shard", file_.path(), name,
               kind_of(header.type()));
  if (leads_out(member.name) || member.name.find('\0') != member.name.npos)
    fail_input("{}: the name '{}' leads out of the archive", file_.path(), name);
  if (folder) {
    if (member.size != 0) fail_input("{}: the folder '{}' claims contents", file_.path(), name);
    return {};
  }
  if (member.size < 0 || member.size > file_.size() - member.at)
    fail_input(
        "{}: '{}' claims {} bytes at byte {}, and the file has {}; it is cut short or "
        "damaged",
        file_.path(), name, member.size, member.at, file_.size());
  return member;
}

std::optional<TarMember> TarReader::next() {
  Extended extended;
  while (true) {
    const TarHeader header = header_at(at_);
    if (header.is_end()) {
      if (extended.any)
        fail_input("{}: the archive ends where an extended header wants a member", file_.path());
      return std::nullopt;
    }
    const int64_t own = header.size();
    if (header.type() == 'x' || header.type() == 'g' || header.type() == 'L') {
      const std::string text = extension(header);
      if (header.type() == 'L' && !extended.name) extended.name = text.substr(0, text.find('\0'));
      if (header.type() == 'x') take_pax(text, extended);
      if (header.type() != 'g') extended.any = true;  // a global one: when and by whom
      at_ += kTarBlock + own + tar_padding(own);
      continue;
    }
    const TarMember member = member_of(header, extended);
    at_ += kTarBlock + member.size + tar_padding(member.size);
    if (!member.name.empty()) return member;
    extended = {};
  }
}

std::string TarReader::contents(const TarMember& member, int64_t limit) const {
  if (member.size > limit)
    fail_input("{}: '{}' has {} bytes; at most {} are expected", file_.path(), shown(member.name),
               member.size, limit);
  std::string text(static_cast<size_t>(member.size), '\0');
  file_.read(member.at, text);
  return text;
}

}  // namespace vitrum
