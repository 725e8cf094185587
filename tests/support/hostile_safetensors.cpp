#include <fmt/format.h>

#include "tests/support/hostile_files.h"

namespace vitrum::test {
namespace {

constexpr uint64_t kTop = uint64_t{1} << 63;

// A header with one tensor "a" of this shape and these offsets.
std::string one(std::string_view shape, std::string_view offsets, std::string_view dtype = "F32") {
  return fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

HostileFile header(std::string name, std::string part, std::string_view text, size_t data = 4) {
  return hostile(std::move(name), std::move(part), safetensors_of(text, data));
}

std::string million_tensors() {
  std::string text = "{";
  for (int i = 0; i < 1'000'000; ++i)
    text += fmt::format(R"("{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}},)", i);
  text.back() = '}';
  return safetensors_of(text, 0);
}

std::string many_metadata() {
  std::string text = R"({"__metadata__":{)";
  for (int i = 0; i < 200'000; ++i) text += fmt::format(R"("{}":"",)", i);
  text.back() = '}';
  return safetensors_of(text + "}", 0);
}

std::string large_metadata() {
  std::string text = R"({"__metadata__":{)";
  const std::string value(8000, 'v');
  for (int i = 0; i < 12'300; ++i)
    text.append(fmt::format(R"("{}":")", i)).append(value).append("\",");
  text.back() = '}';
  return safetensors_of(text + "}", 0);
}

}  // namespace

HostileFile hostile(std::string name, std::string part, std::string bytes) {
  return {std::move(name), std::move(part), [bytes = std::move(bytes)] { return bytes; }};
}

std::string safetensors_of(std::string_view header, size_t data_bytes) {
  return little_endian<uint64_t>(header.size()) + std::string(header) +
         std::string(data_bytes, 'x');
}

HostileFiles hostile_safetensors() {
  const std::string good = safetensors_of(one("[1]", "[0,4]"), 4);
  std::string ones;
  for (int i = 0; i < 64; ++i) ones += "1,";
  const std::string two =
      R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},"{}":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})";
  const auto pair = [&](std::string_view name, std::string_view offsets) {
    return fmt::format(fmt::runtime(two), name, offsets);
  };
  return {
      hostile("empty", "accepted are", ""),
      hostile("one byte", "accepted are", "x"),
      hostile("seven bytes", "accepted are", std::string(7, '\1')),
      hostile("length 0", "does not start with '{'", little_endian<uint64_t>(0)),
      hostile("length 0 and data", "does not start with '{'", little_endian<uint64_t>(0) + "{}"),
      hostile("length 1", "not valid JSON", little_endian<uint64_t>(1) + "{"),
      hostile("length 2^63", "exceeds the format's", little_endian(kTop) + "{}"),
      hostile("length 2^64-1", "exceeds the format's", little_endian(UINT64_MAX) + "{}"),
      hostile("length 100 MB + 1", "exceeds the format's",
              little_endian<uint64_t>(100'000'001) + "{}"),
      hostile("length beyond the file", "truncated", little_endian<uint64_t>(1000) + "{}"),
      hostile("cut in the header", "truncated", good.substr(0, 30)),
      hostile("cut in the data", "truncated", good.substr(0, good.size() - 1)),
      hostile("trailing byte", "1 bytes after its last tensor", good + "x"),
      hostile("trailing archive", "after its last tensor", good + "PK\5\6" + std::string(18, '\0')),
      header("an array", "not a safetensors file", "[]", 0),
      header("not UTF-8", "not valid JSON", "{\"\xff\xfe\":1}", 0),
      header("half a surrogate", "not valid JSON", R"({"\ud800":1})", 0),
      header("unclosed", "not valid JSON", R"({"a":)", 0),
      header("two documents", "not valid JSON", one("[1]", "[0,4]") + "{}"),
      header("deep arrays", "nests deeper", "{\"a\":" + std::string(100'000, '[')),
      header("deep objects", "nests deeper", "{\"a\":{\"b\":" + std::string(50'000, '{')),
      header("an object where a tensor has a number", "has an object in \"shape\"",
             one("{}", "[0,4]")),
      header("bytes behind a NUL", "has a NUL",
             one("[1]", "[0,4]") + std::string("\0junk that nobody reads", 23)),
      header("a long name", "has a name of 600 bytes", pair(std::string(600, 'b'), "[4,8]"), 8),
      {"one text of 20 MB", "a text, number or gap of more than",
       [] { return safetensors_of("{\"" + std::string(20'000'000, 'a') + "\":1}", 0); }},
      {"a number of 10 MB", "a number or word of more than 4096",
       [] { return safetensors_of("{\"a\":{\"shape\":[" + std::string(10 << 20, '9'), 0); }},
      {"20 MB of blanks", "a text, number or gap of more than",
       [] { return safetensors_of("{" + std::string(20'000'000, ' ') + "}", 0); }},
      {"99 MB of metadata", "\"__metadata__\" has more than", large_metadata},
      header("duplicate tensor", "\"a\" twice", pair("a", "[4,8]"), 8),
      header("duplicate key", "twice",
             R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
      header("duplicate metadata", "twice", R"({"__metadata__":{},"__metadata__":{}})", 0),
      header("metadata of numbers", "where a string belongs", R"({"__metadata__":{"a":1}})", 0),
      header("metadata is no object", "holds an array", R"({"__metadata__":[]})", 0),
      {"too much metadata", "more than 65536 entries", many_metadata},
      header("unknown key", "unknown key",
             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"code":"x"}})"),
      header("no dtype", "lacks one of", R"({"a":{"shape":[1],"data_offsets":[0,4]}})"),
      header("one offset", "lacks one of", one("[1]", "[0]")),
      header("three offsets", "more than two", one("[1]", "[0,4,8]")),
      header("unknown dtype", "unsupported dtype \"Q7\"", one("[1]", "[0,4]", "Q7")),
      header("dtype of 1 MB", "unsupported dtype", one("[1]", "[0,4]", std::string(1 << 20, 'F'))),
      header("negative dim", "negative number", one("[-1]", "[0,4]")),
      header("float dim", "a fraction", one("[1.0]", "[0,4]")),
      header("dim 1e30", "a fraction or a huge number", one("[1e30]", "[0,4]")),
      header("dim 2^64", "a fraction or a huge number", one("[18446744073709551616]", "[0,4]")),
      header("dim 2^63", "has the dimension 9223372036854775808",
             one("[9223372036854775808]", "[0,4]")),
      header("string dim", "a string in", one("[\"1\"]", "[0,4]")),
      header("null shape", "null in", one("null", "[0,4]")),
      header("overflowing dims", "impossible shape",
             one("[4194305,4194305,211106198978564]", "[0,4]")),
      header("2^32 x 2^32", "impossible shape", one("[4294967296,4294967296]", "[0,0]"), 0),
      header("zero hides overflow", "impossible shape", one("[0,4294967296,4294967296]", "[0,0]"),
             0),
      header("65 dims", "more than 6 dimensions", one("[" + ones + "1]", "[0,4]")),
      header("begin > end", "data_offsets are [4, 0]", one("[1]", "[4,0]")),
      header("negative offset", "negative number", one("[1]", "[-4,0]")),
      header("offsets and shape differ", "needs 8 bytes", one("[2]", "[0,4]")),
      header("overlap by one byte", "it overlaps another", pair("b", "[3,7]"), 7),
      header("the same bytes twice", "it overlaps another", pair("b", "[0,4]"), 4),
      header("a hole", "nothing describes the bytes before", pair("b", "[8,12]"), 12),
      header("offset 2^63", "needs 4 bytes",
             one("[1]", "[9223372036854775808,9223372036854775809]")),
      header("offset beyond the file", "nothing describes",
             one("[1]", "[1000000000000,1000000000004]")),
      {"a million tensors", "more than 65536 tensors", million_tensors},
  };
}

HostileFiles hostile_indexes() {
  const auto map = [](std::string_view inside) {
    return fmt::format("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", inside);
  };
  const auto naming = [&](std::string name, std::string_view file,
                          std::string part = "a shard is a plain file name") {
    return hostile(std::move(name), std::move(part), map(fmt::format("\"a\":\"{}\"", file)));
  };
  return {
      naming("absolute path", "/etc/passwd"),
      naming("parent", "../one.safetensors"),
      naming("folder", "x/one.safetensors"),
      naming("dot dot", ".."),
      naming("no name", ""),
      naming("NUL in the name", "one.safetensors\\u0000.png"),
      naming("backslash", "..\\\\one.safetensors"),
      naming("a very long name", std::string(5000, 'a')),
      naming("itself", "bad", "expected a file of tensors"),
      naming("missing file", "two.safetensors", "No such file"),
      hostile("empty map", "differ", map("\"b\":\"one.safetensors\"")),
      hostile("no map", "no \"weight_map\"", "{\"metadata\":{}}"),
      hostile("map of numbers", "is no string", map("\"a\":1")),
      hostile("map is a list", "is no object", "{\"weight_map\":[]}"),
      hostile("tensor twice", "twice", map(R"("a":"one.safetensors","a":"one.safetensors")")),
      hostile("bytes behind a NUL", "has a NUL",
              map("\"a\":\"one.safetensors\"") + std::string("\0junk", 5)),
      hostile("unclosed", "not valid JSON", "{\"weight_map\":{\"a\":"),
      hostile("not UTF-8", "not valid JSON", "{\"weight_map\":{\"\xc3\x28\":\"x\"}}"),
      hostile("deep", "nests deeper", "{\"x\":" + std::string(1'000'000, '[')),
      {"40 MB", "larger than", [] { return "{" + std::string(40 << 20, ' ') + "}"; }},
  };
}

}  // namespace vitrum::test
