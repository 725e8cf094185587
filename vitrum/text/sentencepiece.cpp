// spiece.model: SentencePiece's ModelProto, read field by field.
#include <bit>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/text/tokenizer_config.h"
#include "vitrum/text/tokenizers.h"

namespace vitrum {
namespace {

constexpr size_t kMostPieces = 1 << 20;

// One message: fields of a number and a value, which is an integer, four or eight bytes, or so many
// bytes. Field numbers that are not asked for are passed over.
class Message {
 public:
  Message(std::string_view bytes, const std::string& path) : rest_(bytes), path_(path) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    switch (key & 7) {
      case 0: number_ = varint(), bytes_ = {}; break;
      case 1: bytes_ = take(8); break;
      case 2: bytes_ = take(varint()); break;
      case 5: bytes_ = take(4); break;
      default: fail_input("{}: it is not SentencePiece's: a field of kind {}", path_, key & 7);
    }
    kind_ = static_cast<int>(key & 7);
    return true;
  }

  uint64_t field() const { return field_; }
  std::string_view bytes() const { return expect(2), bytes_; }
  int64_t number() const { return expect(0), static_cast<int64_t>(number_); }
  float real() const {
    expect(5);
    uint32_t bits = 0;
    std::memcpy(&bits, bytes_.data(), sizeof(bits));
    return std::bit_cast<float>(bits);
  }

 private:
  void expect(int kind) const {
    if (kind_ != kind)
      fail_input("{}: it is not SentencePiece's: field {} has kind {}, expected {}", path_, field_,
                 kind_, kind);
  }
  std::string_view take(uint64_t n) {
    if (n > rest_.size())
      fail_input("{}: it ends {} bytes inside a field of {}", path_, rest_.size(), n);
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(n));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint64_t varint() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      n |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return n;
    }
    fail_input("{}: it is not SentencePiece's: a number of more than 64 bits", path_);
  }

  std::string_view rest_, bytes_;
  const std::string& path_;
  uint64_t field_ = 0, number_ = 0;
  int kind_ = 0;
};

Piece read_piece(std::string_view bytes, const std::string& path) {
  Piece piece;
  for (Message m(bytes, path); m.next();) {
    if (m.field() == 1) piece.text = m.bytes();
    if (m.field() == 2) piece.score = m.real();
    if (m.field() != 3) continue;
    if (m.number() < 1 || m.number() > 6)
      fail_input("{}: a piece of type {}, expected 1 to 6", path, m.number());
    piece.kind = static_cast<PieceKind>(m.number());
  }
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& path, UnigramTables& tables) {
  constexpr int64_t kUnigram = 1;
  for (Message m(bytes, path); m.next();) {
    if (m.field() == 3 && m.number() != kUnigram)
      fail_input("{}: a SentencePiece model of type {}; only unigram models (1) are read", path,
                 m.number());
    if (m.field() == 24 && m.number() != 0)
      fail_input("{}: white space as a suffix is not supported", path);
    if (m.field() == 35) tables.bytes_of_unknown = m.number() != 0;
    if (m.field() != 42) continue;
    if (m.number() < -1 || m.number() >= static_cast<int64_t>(kMostPieces))
      fail_input("{}: the mark of a text's end is piece {}", path, m.number());
    tables.end = static_cast<int32_t>(m.number());
  }
}

void read_normalizer(std::string_view bytes, const std::string& path, UnigramTables& tables) {
  for (Message m(bytes, path); m.next();) {
    if (m.field() == 2) tables.charsmap = m.bytes();
    if (m.field() == 3) tables.dummy_prefix = m.number() != 0;
    if (m.field() == 4) tables.remove_extra_spaces = m.number() != 0;
    if (m.field() == 5 && m.number() == 0)
      fail_input("{}: blanks that stay as they are are not supported", path);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(const TokenizerText& model,
                                               const TokenizerText& config) {
  UnigramTables tables;
  for (Message m(model.text, model.path); m.next();) {
    if (m.field() == 1) tables.pieces.push_back(read_piece(m.bytes(), model.path));
    if (m.field() == 2) read_trainer(m.bytes(), model.path, tables);
    if (m.field() == 3) read_normalizer(m.bytes(), model.path, tables);
    if (!tables.pieces.empty() && tables.pieces.back().text.empty())
      fail_input("{}: piece {} has 0 bytes", model.path, tables.pieces.size() - 1);
    if (tables.pieces.size() > kMostPieces)
      fail_input("{}: more than {} pieces are too many to be meant", model.path, kMostPieces);
  }
  tables.dummy_prefix = true;  // as every tokenizer of SigLIP has it, whatever the file says
  return std::make_unique<SiglipTokenizer>(std::move(tables), read_tokenizer_config(config).lower,
                                           model.path);
}

}  // namespace vitrum
