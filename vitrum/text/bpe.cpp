#include "vitrum/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"

namespace vitrum {

Bpe::Bpe(const BpeTables& tables, const std::string& path)
    : end_of_word_(tables.end_of_word), one_unknown_(tables.one_unknown) {
  words_.reserve(tables.words.size());
  for (const auto& [word, id] : tables.words) {
    if (!words_.emplace(word, id).second)
      fail_input("{}: the word '{}' is there twice", path, shown(word));
    size_ = std::max(size_, id + 1);
  }
  merges_.reserve(tables.merges.size());
  int32_t rank = 0;
  for (const auto& [left, right] : tables.merges) {
    const int32_t a = find(left), b = find(right), whole = find(left + right);
    if (a < 0 || b < 0 || whole < 0)
      fail_input(
          "{}: merge {} is of '{}' and '{}', which are not words of the vocabulary, both and "
          "together",
          path, rank, shown(left), shown(right));
    merges_.insert_or_assign(pair(a, b), Merge{rank++, whole});
  }
  if (!tables.unknown.empty() && (unknown_ = find(tables.unknown)) < 0)
    fail_input("{}: '{}', the word for unknown ones, is not in the vocabulary", path,
               shown(tables.unknown));
  for (int byte = 0; tables.bytes_of_unknown && byte < 256; ++byte)
    bytes_.push_back(find(fmt::format("<0x{:02X}>", byte)));
}

int32_t Bpe::find(std::string_view word) const {
  const auto found = words_.find(std::string(word));
  return found == words_.end() ? -1 : found->second;
}

void Bpe::add_symbol(std::string_view symbol, bool last, std::vector<int32_t>& ids) const {
  const int32_t id =
      last && !end_of_word_.empty() ? find(std::string(symbol) + end_of_word_) : find(symbol);
  if (id >= 0) return ids.push_back(id);
  const auto byte_id = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
  const bool as_bytes = !bytes_.empty() && std::all_of(symbol.begin(), symbol.end(),
                                                       [&](char c) { return byte_id(c) >= 0; });
  if (as_bytes)
    for (const char c : symbol) ids.push_back(byte_id(c));
  else if (unknown_ >= 0 && !(one_unknown_ && !ids.empty() && ids.back() == unknown_))
    ids.push_back(unknown_);
}

// The pair with the lowest rank is merged first, the leftmost of equal ones; a heap holds all that
// may be, and what has changed since is noticed when it comes up.
void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<int32_t> symbols;
  for (CodePoint c; !word.empty(); word.remove_prefix(c.bytes)) {
    c = decode_utf8(word);
    add_symbol(word.substr(0, c.bytes), c.bytes == word.size(), symbols);
  }
  const int n = static_cast<int>(symbols.size());
  std::vector<int> next(symbols.size()), before(symbols.size());
  for (int i = 0; i < n; ++i)
    next[static_cast<size_t>(i)] = i + 1, before[static_cast<size_t>(i)] = i - 1;
  using Candidate = std::tuple<int32_t, int, uint64_t>;  // rank, left place, pair
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> open;
  const auto at = [&](int i) -> int32_t& { return symbols[static_cast<size_t>(i)]; };
  const auto behind = [&](int i) -> int& { return next[static_cast<size_t>(i)]; };
  const auto offer = [&](int i) {
    if (i < 0 || behind(i) >= n) return;
    const uint64_t key = pair(at(i), at(behind(i)));
    if (const auto found = merges_.find(key); found != merges_.end())
      open.emplace(found->second.rank, i, key);
  };
  for (int i = 0; i < n; ++i) offer(i);
  constexpr int32_t kGone = -1;
  while (!open.empty()) {
    const auto [rank, i, key] = open.top();
    open.pop();
    if (at(i) == kGone || behind(i) >= n || pair(at(i), at(behind(i))) != key) continue;
    const int gone = behind(i);
    at(i) = merges_.at(key).whole, at(gone) = kGone;
    behind(i) = behind(gone);
    if (behind(i) < n) before[static_cast<size_t>(behind(i))] = i;
    offer(before[static_cast<size_t>(i)]);
    offer(i);
  }
  std::copy_if(symbols.begin(), symbols.end(), std::back_inserter(ids),
               [](int32_t id) { return id != kGone; });
}

}  // namespace vitrum
