// tokenizer.json of the `tokenizers` library, as far as image-text models have it; vocab.json and
// merges.txt; tokenizer_config.json; and which of them a model directory has.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "vitrum/core/base64.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/text_limits.h"
#include "vitrum/core/utf8.h"
#include "vitrum/text/tokenizer_config.h"
#include "vitrum/text/tokenizers.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// More than the largest vocabularies have (SigLIP 2's: 256,000 words, 580,000 merges).
constexpr int64_t kMostWords = 1 << 20;
constexpr size_t kMostMerges = 1 << 20;
constexpr size_t kMostMarks = 64;  // around a text; each is looked for among all words
constexpr TextLimits kLimits{.depth = 16, .values = 2 << 20};

// A value of the file; its members are asked for by name, and null is as good as none.
class Part {
 public:
  Part(const Json& json, const std::string& path) : json_(&json), path_(path) {}

  bool is(Json::value_t type) const { return json_->type() == type; }
  bool is_text() const { return json_->is_string(); }
  Part operator[](const char* key) const {
    static const Json none;
    if (!json_->is_object()) return {none, path_};
    const auto found = json_->find(key);
    return {found == json_->end() ? none : *found, path_};
  }
  bool there() const { return !json_->is_null(); }
  const std::string& text(const char* what) const {
    if (!json_->is_string()) wrong(what, "a text");
    return json_->get_ref<const std::string&>();
  }
  std::string text_or(const char* what, const char* fallback) const {
    return there() ? text(what) : fallback;
  }
  bool flag(const char* what, bool fallback) const {
    if (there() && !json_->is_boolean()) wrong(what, "true or false");
    return there() ? json_->get<bool>() : fallback;
  }
  int32_t id(const char* what) const {
    const bool whole = json_->is_number_integer() || json_->is_number_unsigned();
    if (!whole || *json_ < 0 || *json_ >= kMostWords)
      wrong(what, "a whole number from 0 to 1048575");
    return json_->get<int32_t>();
  }
  float score() const {
    if (!json_->is_number()) wrong("a score", "a number");
    return json_->get<float>();
  }
  const Json& list(const char* what) const {
    if (!json_->is_array()) wrong(what, "a list");
    return *json_;
  }
  const Json& object(const char* what) const {
    if (!json_->is_object()) wrong(what, "an object");
    return *json_;
  }
  Part of(const Json& json) const { return {json, path_}; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void wrong(const char* what, const char* expected) const {
    fail_input("{}: {} must be {}, not {}", path_, what, expected,
               fit_columns(json_->dump(-1, ' ', false, Json::error_handler_t::replace), 40));
  }
  const Json* json_;
  const std::string& path_;
};

Json parse(const TokenizerText& file) {
  if (const std::string problem = json_problem(file.text, kLimits); !problem.empty())
    fail_input("{}: it {}", file.path, problem);
  try {
    return Json::parse(file.text);
  } catch (const Json::exception& e) {
    const std::string what = e.what();  // "[json.exception.parse_error.101] parse error ..."
    const size_t at = what.find("] ");
    fail_input("{}: {}", file.path, fit_columns(at == what.npos ? what : what.substr(at + 2), 200));
  }
}

std::vector<std::pair<std::string, int32_t>> read_words(const Part& vocabulary) {
  std::vector<std::pair<std::string, int32_t>> words;
  for (const auto& [word, id] : vocabulary.object("the vocabulary").items())
    words.emplace_back(word, vocabulary.of(id).id("the number of a word"));
  return words;
}

// "a b", or ["a", "b"].
std::pair<std::string, std::string> read_merge(const Part& merge) {
  if (!merge.is_text()) {
    const Json& two = merge.list("a merge");
    if (two.size() != 2) fail_input("{}: a merge of {} words", merge.path(), two.size());
    return {merge.of(two[0]).text("a merge"), merge.of(two[1]).text("a merge")};
  }
  const std::string& text = merge.text("a merge");
  const size_t space = text.find(' ');
  if (space == text.npos || space == 0 || space + 1 == text.size())
    fail_input("{}: the merge '{}' is not two words", merge.path(), shown(text));
  return {text.substr(0, space), text.substr(space + 1)};
}

// The types of a normalizer or of what cuts words, those of a sequence one after the other.
std::vector<std::string> types_of(const Part& part) {
  if (!part.there()) return {};
  const std::string type = part["type"].text("a type");
  if (type != "Sequence") return {type};
  std::vector<std::string> all;
  const bool normalizers = part["normalizers"].there();
  for (const Json& each : part[normalizers ? "normalizers" : "pretokenizers"].list("a sequence"))
    all.push_back(part.of(each)["type"].text("a type"));
  return all;
}

AddedTables read_added(const Part& file) {
  AddedTables added;
  if (!file["added_tokens"].there()) return added;
  for (const Json& each : file["added_tokens"].list("added_tokens")) {
    const Part token = file.of(each);
    AddedWords& words = token["normalized"].flag("normalized", true) ? added.normalized : added.raw;
    words.add(token["content"].text("an added token"), token["id"].id("its number"), file.path());
  }
  return added;
}

BpeTables read_bpe(const Part& model) {
  BpeTables tables{.words = read_words(model["vocab"]),
                   .unknown = model["unk_token"].text_or("unk_token", ""),
                   .end_of_word = model["end_of_word_suffix"].text_or("end_of_word_suffix", ""),
                   .bytes_of_unknown = model["byte_fallback"].flag("byte_fallback", false),
                   .one_unknown = model["fuse_unk"].flag("fuse_unk", false)};
  if (!model["continuing_subword_prefix"].text_or("continuing_subword_prefix", "").empty())
    fail_input("{}: a prefix of continued words is not supported", model.path());
  for (const Json& merge : model["merges"].list("merges"))
    tables.merges.push_back(read_merge(model.of(merge)));
  return tables;
}

void require_types(const Part& file, const char* key,
                   const std::vector<std::vector<std::string>>& known) {
  const std::vector<std::string> types = types_of(file[key]);
  if (std::find(known.begin(), known.end(), types) != known.end()) return;
  std::string all;
  for (const std::string& type : types) all += (all.empty() ? "" : ", ") + shown(type);
  fail_input("{}: a {} of {} is not supported; CLIP's, SigLIP's and SigLIP 2's are", file.path(),
             key, all.empty() ? "nothing" : all);
}

// What stands around a text: in the file, or by the flags of tokenizer_config.json.
Framing read_framing(const Part& file, const TokenizerConfig& config, const BpeTables& tables) {
  const auto find = [&](const std::string& word) {
    for (const auto& [text, id] : tables.words)
      if (text == word) return id;
    fail_input("{}: '{}' is not in the vocabulary", file.path(), shown(word));
  };
  Framing framing{.end = find("<eos>"), .pad = find("<pad>")};
  framing.pad_left = config.padding_side.empty()
                         ? file["padding"]["direction"].text_or("direction", "Right") == "Left"
                         : config.padding_side == "left";
  const Part single = file["post_processor"]["single"];
  if (config.says_marks || !single.there()) {
    if (config.begin_mark) framing.before = {find("<bos>")};
    if (config.end_mark) framing.after = {framing.end};
    return framing;
  }
  bool behind = false;
  const Json& around = single.list("post_processor.single");
  if (around.size() > kMostMarks)
    fail_input("{}: {} marks around a text are too many to be meant", file.path(), around.size());
  for (const Json& each : around) {
    const Part special = single.of(each)["SpecialToken"];
    if (special.there())
      (behind ? framing.after : framing.before).push_back(find(special["id"].text("a token")));
    else
      behind = true;
  }
  return framing;
}

// The table of replaced characters is a normalizer, alone or in a sequence.
std::string find_charsmap(const Part& normalizer) {
  if (!normalizer.there()) return {};
  if (normalizer["normalizers"].there()) {
    for (const Json& each : normalizer["normalizers"].list("normalizers"))
      if (std::string found = find_charsmap(normalizer.of(each)); !found.empty()) return found;
    return {};
  }
  const Part map = normalizer["precompiled_charsmap"];
  if (!map.there()) return {};
  const auto bytes = from_base64(map.text("precompiled_charsmap"));
  if (!bytes) fail_input("{}: precompiled_charsmap is not base64", map.path());
  return *bytes;
}

UnigramTables read_unigram(const Part& file) {
  const Part model = file["model"];
  UnigramTables tables{.charsmap = find_charsmap(file["normalizer"]),
                       .bytes_of_unknown = model["byte_fallback"].flag("byte_fallback", false)};
  for (const Json& each : model["vocab"].list("the vocabulary")) {
    const Json& two = model.of(each).list("a piece");
    if (two.size() != 2) fail_input("{}: a piece of {} values", model.path(), two.size());
    tables.pieces.push_back({model.of(two[0]).text("a piece"), model.of(two[1]).score()});
  }
  const auto set_kind = [&](int32_t id, PieceKind kind) {
    if (static_cast<size_t>(id) < tables.pieces.size())
      tables.pieces[static_cast<size_t>(id)].kind = kind;
  };
  if (file["added_tokens"].there())
    for (const Json& each : file["added_tokens"].list("added_tokens"))
      set_kind(file.of(each)["id"].id("its number"), PieceKind::kControl);
  set_kind(model["unk_id"].id("unk_id"), PieceKind::kUnknown);
  return tables;
}

std::string read_if_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_file(path.string()) : std::string();
}

}  // namespace

TokenizerConfig read_tokenizer_config(const TokenizerText& file) {
  TokenizerConfig config;
  if (file.text.empty()) return config;
  const Json json = parse(file);
  const Part keys(json, file.path);
  config.lower = keys["do_lower_case"].flag("do_lower_case", true);
  config.says_marks = keys["add_bos_token"].there() || keys["add_eos_token"].there();
  config.begin_mark = keys["add_bos_token"].flag("add_bos_token", false);
  config.end_mark = keys["add_eos_token"].flag("add_eos_token", false);
  config.padding_side = keys["padding_side"].text_or("padding_side", "");
  return config;
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(const TokenizerText& json,
                                                const TokenizerText& config) {
  const Json parsed = parse(json);
  const Part file(parsed, json.path), model = file["model"];
  const std::string type = model["type"].text_or("model.type", "BPE");
  if (type == "Unigram")
    return std::make_unique<SiglipTokenizer>(read_unigram(file),
                                             read_tokenizer_config(config).lower, json.path);
  if (type != "BPE")
    fail_input("{}: a tokenizer of type '{}'; expected BPE or Unigram", json.path, shown(type));
  BpeTables tables = read_bpe(model);
  if (tables.end_of_word == "</w>") {
    require_types(file, "normalizer", {{"NFC", "Replace", "Lowercase"}});
    require_types(file, "pre_tokenizer", {{"Split", "ByteLevel"}});
    return std::make_unique<ClipTokenizer>(tables, read_added(file), json.path);
  }
  require_types(file, "normalizer", {{"Replace"}, {"Lowercase", "Replace"}});
  require_types(file, "pre_tokenizer", {{}, {"Split"}});
  Framing framing = read_framing(file, read_tokenizer_config(config), tables);
  return std::make_unique<GemmaTokenizer>(tables, read_added(file), std::move(framing), json.path);
}

std::unique_ptr<Tokenizer> parse_vocabulary(const TokenizerText& vocabulary,
                                            const TokenizerText& merges) {
  const Json parsed = parse(vocabulary);
  BpeTables tables{.words = read_words(Part(parsed, vocabulary.path)),
                   .unknown = "<|endoftext|>",
                   .end_of_word = "</w>"};
  std::string_view rest = merges.text;
  for (size_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 == line.size())
      fail_input("{}:{}: '{}' is not two words", merges.path, number, shown(line));
    if (tables.merges.size() == kMostMerges)
      fail_input("{}: more than {} merges are too many to be meant", merges.path, kMostMerges);
    tables.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  AddedTables added;
  for (const auto& [word, id] : tables.words)
    if (word == "<|startoftext|>" || word == "<|endoftext|>")
      added.raw.add(word, id, vocabulary.path);
  return std::make_unique<ClipTokenizer>(tables, std::move(added), vocabulary.path);
}

std::vector<std::string> tokenizer_files(const std::string& model_dir) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const char* name :
       {"spiece.model", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"})
    if (const fs::path path = fs::path(model_dir) / name; fs::exists(path, ignored))
      found.push_back(path.string());
  return found;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model_dir) {
  const fs::path dir(model_dir);
  std::error_code ignored;
  const auto there = [&](const char* name) { return fs::exists(dir / name, ignored); };
  const auto file = [&](const char* name) {
    const fs::path path = dir / name;
    return TokenizerText{read_if_there(path), path.string()};
  };
  const TokenizerText config = file("tokenizer_config.json");
  if (there("spiece.model")) return parse_sentencepiece(file("spiece.model"), config);
  if (there("tokenizer.json")) return parse_tokenizer_json(file("tokenizer.json"), config);
  if (there("vocab.json") && there("merges.txt"))
    return parse_vocabulary(file("vocab.json"), file("merges.txt"));
  fail_input(
      "{} has no tokenizer; expected tokenizer.json, spiece.model, or vocab.json and merges.txt",
      model_dir);
}

}  // namespace vitrum
