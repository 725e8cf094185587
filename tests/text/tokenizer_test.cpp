// Tokenizers: tokens that `tokenizers` and `sentencepiece` give for the same small vocabularies
// (tools/golden/tokenizer_golden.py), and files that are not what they should be.
#include "vitrum/text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/expect_error.h"
#include "vitrum/core/files.h"
#include "vitrum/text/bpe.h"
#include "vitrum/text/unicode.h"
#include "vitrum/text/unigram.h"

namespace vitrum {
namespace {

const std::string kGolden = std::string(VITRUM_SOURCE_DIR) + "/tests/golden/tokenizers/";

// A line each: the text with escapes, a tab, its tokens.
struct Row {
  std::string text;
  std::vector<int32_t> ids;
};
std::vector<Row> golden_rows(const std::string& name) {
  std::vector<Row> rows;
  std::istringstream file(read_file(kGolden + name));
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.rfind('\t');
    Row row;
    for (size_t i = 0; i < tab; ++i)
      row.text += line[i] != '\\'    ? line[i]
                  : line[++i] == 'n' ? '\n'
                  : line[i] == 't'   ? '\t'
                                     : line[i];
    std::istringstream ids(line.substr(tab + 1));
    for (int32_t id; ids >> id;) row.ids.push_back(id);
    rows.push_back(std::move(row));
  }
  return rows;
}

class Tokenizers : public testing::TestWithParam<const char*> {};

TEST_P(Tokenizers, GiveTheirLibrarysTokens) {
  const std::string name = GetParam();
  const auto tokenizer = open_tokenizer(kGolden + name);
  const std::vector<Row> rows = golden_rows(name + ".txt");
  ASSERT_GT(rows.size(), 50u);
  for (const Row& row : rows) EXPECT_EQ(tokenizer->tokens(row.text), row.ids) << row.text;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Tokenizers,
                         testing::Values("clip", "clip_files", "siglip", "siglip2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, FramesCutsAndPads) {
  const auto clip = open_tokenizer(kGolden + "clip");
  const TokenRow cat = clip->encode("a cat", 8);
  ASSERT_EQ(cat.ids.size(), 8u);
  EXPECT_EQ(cat.ids.front(), 0);
  EXPECT_EQ(cat.ids[static_cast<size_t>(cat.end)], 1);
  EXPECT_EQ(cat.ids.back(), 1);  // padded with the mark of the end
  const TokenRow cut = clip->encode("a cat sitting on the mat with a dog", 4);
  EXPECT_EQ(cut.ids.size(), 4u);
  EXPECT_EQ(cut.end, 3);

  const TokenRow end_only = open_tokenizer(kGolden + "siglip")->encode("", 4);
  EXPECT_EQ(end_only.ids, (std::vector<int32_t>{1, 1, 1, 1}));

  const TokenRow gemma = open_tokenizer(kGolden + "siglip2")->encode("a", 4);
  EXPECT_EQ(gemma.ids[1], 1);  // <eos> behind the text, <pad> behind that
  EXPECT_EQ(gemma.ids[3], 0);
}

TEST(Tokenizer, RefusesTextsThatAreNone) {
  const auto clip = open_tokenizer(kGolden + "clip");
  EXPECT_ERROR(clip->encode("a \xFF cat", 8), ErrorKind::kInput, "is not UTF-8");
  EXPECT_ERROR(clip->encode(std::string(1 << 20, 'a'), 8), ErrorKind::kInput, "longer than any");
  EXPECT_ERROR(clip->encode("a", 1), ErrorKind::kInput, "no room");
}

TEST(Tokenizer, RefusesFilesThatAreNone) {
  const auto json = [](const std::string& text) {
    parse_tokenizer_json({text, "t.json"}, {"", ""});
  };
  const auto refuses = [&](const std::string& text, const char* why) {
    EXPECT_ERROR(json(text), ErrorKind::kInput, why);
  };
  refuses("", "t.json");
  refuses("[]", "the vocabulary must be an object");
  refuses(R"({"model":{"type":"WordPiece"}})", "expected BPE or Unigram");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})", "number of a word");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}})", "number of a word");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})", "is not two words");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "a merge of 1");
  refuses(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["a",1e39]]}})", "t.json");
  refuses(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0],["a",0]]}})", "twice");
  refuses(R"({"model":)" + std::string(5000, '['), "nests deeper");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":0,"<eos>":1,"<pad>":2},"merges":[]},
              "normalizer":{"type":"Strip"}})",
          "normalizer of Strip is not supported");
  // Of a vocabulary that is none of theirs.
  const std::string vocab = R"("vocab":{"a":0,"<eos>":1,"<pad>":2},"merges":[])";
  const auto gemma = [&](const std::string& model, const std::string& more) {
    return R"({"model":{"type":"BPE",)" + vocab + model + R"(},"normalizer":{"type":"Replace"})" +
           more + "}";
  };
  refuses(gemma(R"(,"continuing_subword_prefix":"##")", ""), "a prefix of continued words");
  refuses(gemma(R"(,"unk_token":"?")", ""), "'?', the word for unknown ones, is not");
  refuses(gemma("", R"(,"added_tokens":[{"id":3,"content":""}])"), "an added token of 0 bytes");
  refuses(gemma("", R"(,"post_processor":{"single":[{"SpecialToken":{"id":"<x>"}}]})"),
          "'<x>' is not in the vocabulary");
  // Each mark is looked for among all words.
  std::string marks = R"({"SpecialToken":{"id":"<pad>"}})";
  for (int i = 0; i < 64; ++i) marks += R"(,{"SpecialToken":{"id":"<pad>"}})";
  refuses(gemma("", R"(,"post_processor":{"single":[)" + marks + "]}"), "65 marks around a text");
  refuses(R"({"model":{"type":"BPE","end_of_word_suffix":"</w>",)" + vocab + R"(},
              "normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace"},
                {"type":"Lowercase"}]},
              "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split"},
                {"type":"ByteLevel"}]}})",
          "'<|startoftext|>' and '<|endoftext|>' must be words");
  refuses(R"({"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0],["b",0]]},
              "normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]}})",
          "no piece is the mark of a text's end");
  EXPECT_ERROR(Bpe({.words = {{"a", 0}, {"a", 1}}}, "b"), ErrorKind::kInput, "there twice");
  EXPECT_ERROR(parse_vocabulary({R"({"a":0})", "v.json"}, {"#version: 0.2\r\na", "m.txt"}),
               ErrorKind::kInput, "m.txt:2: 'a' is not two words");
  EXPECT_ERROR(open_tokenizer(kGolden), ErrorKind::kInput, "has no tokenizer; expected");

  const auto spiece = [](const std::string& bytes) {
    parse_sentencepiece({bytes, "s.model"}, {"", ""});
  };
  EXPECT_ERROR(spiece(""), ErrorKind::kInput, "needs pieces");
  EXPECT_ERROR(spiece("\x0a\xff\xff\xff\xff\x0f"), ErrorKind::kInput, "s.model: it ends");
  EXPECT_ERROR(spiece("<html>not found</html>"), ErrorKind::kInput, "s.model");
  const std::string good = read_file(kGolden + "siglip/spiece.model");
  // A few bytes that would become many: pieces of nothing or without number, and a character that
  // stands for a book.
  const auto repeated = [](const std::string& text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times; ++i) all += text;
    return all;
  };
  EXPECT_ERROR(spiece(std::string("\x0a\0", 2)), ErrorKind::kInput, "piece 0 has 0 bytes");
  EXPECT_ERROR(spiece(repeated("\x0a\x03\x0a\x01x", (1 << 20) + 1)), ErrorKind::kInput,
               "more than 1048576 pieces");
  const std::string table = std::string("\4\0\0\0....", 8) + std::string(600, 'b') + '\0',
                    normalizer = std::string("\x12\xe1\x04", 3) + table;
  EXPECT_ERROR(spiece(good + std::string("\x1a\xe4\x04", 3) + normalizer), ErrorKind::kInput,
               "a character is replaced by 600 bytes");
  EXPECT_ERROR(parse_vocabulary({R"({"a":0})", "v.json"}, {repeated("a a\n", (1 << 20) + 1), "m"}),
               ErrorKind::kInput, "more than 1048576 merges");
  refuses(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[)" + repeated("1,", 2 << 20),
          "more than 2097152 values");
  for (size_t n = 1; n < good.size(); n = n * 3 / 2 + 1) {
    try {
      spiece(good.substr(0, n));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInput);
      EXPECT_NE(std::string(e.what()).find("s.model"), std::string::npos);
    }
  }
}

// A field of a protobuf message, and a piece: its text, its score's bits and its type.
std::string field(uint8_t number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string piece(const std::string& text, const std::string& score = "", char type = 1) {
  return field(1, field(1, text) + (score.empty() ? "" : "\x15" + score) + "\x18" + type);
}

// One for each check of SentencePiece's reader that the test above does not reach.
TEST(Tokenizer, RefusesPiecesThatAreNone) {
  const std::string two = piece("x") + piece("</s>", "", 3), nan("\0\0\xc0\x7f", 4);
  const std::string all = two + piece("?", "", 2);
  const std::string zero(1, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {all + field(2, "\x18\x02"), "a SentencePiece model of type 2"},
      {all + field(2, "\xc0\x01\x01"), "white space as a suffix"},
      {all + field(2, "\x98\x02\x01"), "there is no piece for byte 0x00"},
      {all + field(2, "\xd0\x02\x81\x80\x80\x80\x10"),
       "the mark of a text's end is piece 4294967297"},
      {all + field(2, "\xd0\x02\x7f"), "no piece is the mark of a text's end"},
      {all + field(3, "\x28" + zero), "blanks that stay as they are"},
      {all + field(3, field(2, "\x05")), "has 1 bytes, 0 of them for its trie"},
      {all + field(3, field(2, "\x05" + std::string(8, '\0'))), "5 of them for its trie"},
      {all + field(3, field(2, "\x04" + std::string(7, '\0') + "a")), "ends inside a text"},
      {piece("x", "", 7), "a piece of type 7, expected 1 to 6"},
      {piece("x", nan) + all, "the score of piece 0, 'x', is not finite"},
      {all + piece("x"), "the piece 'x' is there twice"},
      {two, "one of them for what is unknown"},
      {piece("x") + piece("?", "", 2), "no piece is the mark of a text's end"},
      {"\x0b", "a field of kind 3"},
      {"\x08\x01", "field 1 has kind 0, expected 2"},
      {field(1, "\x0d...."), "field 1 has kind 5, expected 2"},
      {std::string(10, '\xff') + "\x01", "a number of more than 64 bits"},
      {"\x09\x01", "it ends 1 bytes inside a field of 8"}};
  for (const auto& [bytes, why] : cases)
    EXPECT_ERROR(parse_sentencepiece({bytes, "s.model"}, {"", ""}), ErrorKind::kInput, why);
  parse_sentencepiece({all + "\x50\x01" + "\x51........", "s.model"}, {"", ""});  // of others
}

// Whoever looks numbers up in a table must know the largest.
TEST(Tokenizer, CountsAddedWords) {
  const char* const kJson = R"({"added_tokens":[{"id":70000,"content":"<x>"}],
      "model":{"type":"BPE","vocab":{"a":0,"<eos>":1,"<pad>":2},"merges":[]},
      "normalizer":{"type":"Replace"}})";
  const auto tokenizer = parse_tokenizer_json({kJson, "t.json"}, {"", ""});
  EXPECT_EQ(tokenizer->vocabulary(), 70001);
  EXPECT_EQ(tokenizer->tokens("a<x>a"), (std::vector<int32_t>{0, 70000, 0}));
}

// One word of 60,000 letters: as many merges as letters, and no more than a moment.
TEST(Tokenizer, MergesLongWords) {
  const auto clip = open_tokenizer(kGolden + "clip");
  EXPECT_GT(clip->tokens(std::string(60'000, 'a')).size(), 1000u);
}

// As SentencePiece cuts: the first of equally good ways, and what a user has defined by its length.
TEST(Tokenizer, ChoosesAmongWaysAsSentencePieceDoes) {
  const Unigram pieces({.pieces = {{"<unk>", 0, PieceKind::kUnknown},
                                   {"</s>", 0, PieceKind::kControl},
                                   {"a", -1},
                                   {"b", -1},
                                   {"ab", -2},
                                   {"x", -1.5f},
                                   {"y", -1.5f},
                                   {"z", -1.5f},
                                   {"xyz", -100, PieceKind::kUserDefined}},
                        .charsmap = {},
                        .dummy_prefix = false},
                       "test");
  EXPECT_EQ(pieces.encode("ab"), std::vector<int32_t>{4});
  EXPECT_EQ(pieces.encode("xyz"), std::vector<int32_t>{8});
  EXPECT_EQ(pieces.encode("zy"), (std::vector<int32_t>{7, 6}));
}

TEST(Unicode, ComposesAndLowers) {
  EXPECT_EQ(composed("e\u0301"), "\u00e9");
  EXPECT_EQ(composed("A\u0323\u030a"), "\u1ea0\u030a");  // the lower mark first
  EXPECT_EQ(composed("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(composed("\u212b"), "\u00c5");
  EXPECT_EQ(composed("a\u0305\u0301"), "a\u0305\u0301");  // a mark of its class stands before it
  EXPECT_EQ(composed("\u0958"), "\u0915\u093c");          // excluded from composition
  EXPECT_EQ(lower_case("\u00c9T\u00c9 \u0130 \u0416"), "\u00e9t\u00e9 i\u0307 \u0436");
  EXPECT_EQ(single_spaced(" a \t\n\u3000b ", true), "a b");
  EXPECT_EQ(single_spaced(" a  b ", false), " a b ");
}

}  // namespace
}  // namespace vitrum
