#include <fmt/format.h>

#include "tests/support/hostile_files.h"

namespace vitrum::test {
namespace {

template <class T>
void overwrite(std::string& bytes, size_t at, T n) {
  bytes.replace(at, sizeof n, little_endian(n));
}

// ---- the parts of a pickle ----
std::string global(std::string_view module, std::string_view name) {
  return fmt::format("c{}\n{}\n", module, name);
}
std::string text(std::string_view s) {
  return "X" + little_endian(static_cast<uint32_t>(s.size())) + std::string(s);
}
std::string number(int64_t n) { return "\x8a\x08" + little_endian(n); }
std::string tuple(const std::vector<int64_t>& items) {
  std::string s = "(";
  for (const int64_t n : items) s += number(n);
  return s + "t";
}
std::string storage(int64_t elements, std::string_view key = "0",
                    std::string_view type = "FloatStorage") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") +
         number(elements) + "tQ";
}
std::string tensor(const std::string& storage, int64_t offset, const std::vector<int64_t>& size,
                   const std::vector<int64_t>& stride) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(offset) +
         tuple(size) + tuple(stride) + "\x89}tR";
}
std::string state(const std::string& tensor) { return "}" + text("w") + tensor + "s"; }

// Four floats, of which the tensor wants these.
HostileFile viewing(std::string name, std::string part, int64_t offset,
                    const std::vector<int64_t>& size, const std::vector<int64_t>& stride) {
  return hostile(std::move(name), std::move(part),
                 pytorch_of(state(tensor(storage(4), offset, size, stride)), std::string(16, 'x')));
}
HostileFile pickled(std::string name, std::string part, std::string_view body) {
  return hostile(std::move(name), std::move(part), pytorch_of(body));
}
HostileFile calling(std::string_view module, std::string_view name, std::string_view argument) {
  return pickled(fmt::format("{}.{}", module, name),
                 fmt::format("names the Python object \"{}.{}\"", module, name),
                 global(module, name) + "(" + text(argument) + "tR");
}

constexpr const char* kFourFloats = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }";

std::string npz_of(const std::string& npy) { return zip_of({{"a.npy", npy}}); }
std::string deflated_npz(const std::string& npy, uint64_t claimed) {
  return zip_of({{"a.npy", deflate(npy), true, claimed}});
}
HostileFile array(std::string name, std::string part, std::string_view header) {
  return hostile(std::move(name), std::move(part), npz_of(npy_of(header, std::string(16, 'x'))));
}

std::string many_members() {
  std::vector<ZipMember> members;
  for (int i = 0; i < 60'000; ++i) members.push_back({fmt::format("{}.npy", i), ""});
  return zip_of(members);
}

std::string many_deflated() {
  const std::string npy = npy_of(kFourFloats, std::string(16, 'x')), packed = deflate(npy);
  std::vector<ZipMember> members;
  for (int i = 0; i < 16'000; ++i)
    members.push_back({fmt::format("{}.npy", i), packed, true, npy.size()});
  members.push_back({"bad.npy", packed, true, npy.size() + 1});
  return zip_of(members);
}

std::string bomb() {
  const std::string npy = npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (16777216,), }",
                                 std::string(1 << 26, '\0'));
  return deflated_npz(npy, npy.size());
}

std::string many_tensors() {  // in one small storage
  std::string body = "}(";
  const std::string view = storage(4) + "q\1";
  for (int i = 0; i < 8'000; ++i)
    body += text(std::to_string(i)) + tensor(i == 0 ? view : "h\1", 0, {2, 2}, {1, 2});
  return pytorch_of(body + text("0") + tensor("h\1", 0, {1}, {1}) + "u", std::string(16, 'x'));
}

}  // namespace

HostileFiles hostile_zips() {
  const std::string npy = npy_of(kFourFloats, std::string(16, 'x'));
  const std::string good = npz_of(npy);
  const auto edited = [&](int64_t from_end, auto value) {
    std::string bytes = good;
    overwrite(bytes, bytes.size() - static_cast<size_t>(from_end), value);
    return bytes;
  };
  std::string without_size = good;
  overwrite(without_size, good.rfind("PK\1\2") + 24, UINT32_MAX);
  std::string zip64 = good.substr(0, good.size() - 22) + "PK\6\7" + std::string(4, '\0') +
                      little_endian(UINT64_MAX - 10) + std::string(4, '\1') +
                      good.substr(good.size() - 22);
  return {
      hostile("only the magic", "without its directory", "PK\3\4"),
      hostile("cut", "without its directory", good.substr(0, good.size() - 1)),
      hostile("cut in the middle", "without its directory", good.substr(0, good.size() / 2)),
      hostile("bytes behind", "without its directory", good + "x"),
      hostile("directory beyond the file", "outside the file", edited(6, UINT32_MAX)),
      hostile("directory too long", "outside the file", edited(10, UINT32_MAX)),
      hostile("65535 members", "65535 members in a directory", edited(12, uint16_t{65535})),
      hostile("directory elsewhere", "entry 0", edited(6, uint32_t{0})),
      hostile("size of 64 bits nowhere", "no 64-bit size", without_size),
      hostile("zip64 record nowhere", "zip64 record is missing", zip64),
      hostile(
          "members overlap", "overlap",
          zip_of({{"a.npy", npy},
                  {"a.npy", npy, false, 0, "", 0, 0, -static_cast<int64_t>(30 + 5 + npy.size())}})),
      hostile("member over the directory", "outside the file",
              zip_of({{"a.npy", npy, false, 0, "", 0, 0, 1 << 20}})),
      hostile("no header there", "has no header", zip_of({{"a.npy", npy, false, 0, "", 0, 0, 4}})),
      hostile("the same name twice", "\"a.npy\" twice", zip_of({{"a.npy", npy}, {"a.npy", npy}})),
      hostile("two names", "another name", zip_of({{"a.npy", npy, false, 0, "b.npy"}})),
      hostile("encrypted", "is encrypted", zip_of({{"a.npy", npy, false, 0, "", 1}})),
      hostile("method 99", "neither stored nor deflated",
              zip_of({{"a.npy", npy, false, 0, "", 0, 99}})),
      hostile("empty archive", "neither a PyTorch file", zip_of({})),
      hostile("a zip of text", "neither a PyTorch file", zip_of({{"readme.txt", "hello"}})),
      hostile("member outside its folder", "is no .npy array",
              zip_of({{"../../etc/passwd", "x"}, {"a.npy", npy}})),
      hostile("two pickles", "more than one data.pkl",
              zip_of({{"a/data.pkl", "N."}, {"b/data.pkl", "N."}})),
      hostile("compressed pickle", "is compressed",
              zip_of({{"a/data.pkl", deflate("N."), true, 2}})),
      hostile("big-endian", "big-endian", zip_of({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})),
      hostile("TorchScript", "TorchScript",
              zip_of({{"a/data.pkl", "N."}, {"a/code/__torch__.py", "import os"}})),
      {"60000 members", "60000 arrays; at most", many_members},
      {"16000 deflated members", "bad.npy", many_deflated},
  };
}

HostileFiles hostile_pickles() {
  const std::string deep = std::string(200'000, '('), many = std::string(400'000, ']'),
                    loops = "]" + std::string("q\0", 2) + [] {
                      std::string s;
                      for (int i = 0; i < 600'000; ++i) s += std::string("h\0", 2);
                      return s;
                    }();
  return {
      calling("os", "system", "rm -rf /"),
      calling("posix", "system", "id"),
      calling("subprocess", "Popen", "id"),
      calling("__builtin__", "eval", "1"),
      calling("torch.hub", "load", "x"),
      calling("torch.storage", "_load_from_bytes", "x"),
      calling("numpy", "load", "x"),
      calling("webbrowser", "open", "x"),
      pickled("global by stack", "\"os.system\"", text("os") + text("system") + "\x93"),
      pickled("global of numbers", "no string", "K\1K\1\x93"),
      pickled("global without end", "ends too early", "cos"),
      pickled("a longer name", "\"collections.OrderedDictX\"",
              global("collections", "OrderedDictX")),
      pickled("a name split elsewhere", "\"torch.FloatStorage.\"",
              global("torch.FloatStorage", "")),
      pickled("bad memo", "the memo has no entry 5", "h\5"),
      pickled("memo 2^32-1", "the memo has no place", "Nr\xff\xff\xff\xff"),
      pickled("memo of nothing", "more than there is", std::string("q\0", 2)),
      pickled("empty stack", "more than there is", ""),
      pickled("pop from nothing", "more than there is", "0"),
      pickled("tuple of too few", "more than there is", "N\x86"),
      pickled("below the mark", "more than there is", "N(\x85t"),
      pickled("no mark", "no mark", "Nt"),
      pickled("inst", "opcode 0x69", "(ios\nsystem\n"),
      pickled("obj", "opcode 0x6f", "(No"),
      pickled("extension", "opcode 0x82", "\x82\1"),
      pickled("protocol 0 text", "opcode 0x53", "S'x'\n"),
      pickled("protocol 9", "protocol 9", "\x80\x09"),
      pickled("string beyond the end", "ends too early", "X\xff\xff\xff\x7f"),
      pickled("string of 2^64", "ends too early", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"),
      pickled("number beyond the end", "ends too early", "\x8b\xff\xff\xff\xff"),
      pickled("calls a string", "no function", text("os.system") + ")R"),
      pickled("calls with a list", "no function", global("collections", "OrderedDict") + "]R"),
      pickled("calls a type", "calls a type", global("torch", "FloatStorage") + ")R"),
      pickled("a dictionary of arguments", "made of arguments",
              global("collections", "OrderedDict") + "N\x85R"),
      pickled("fills a number", "is no dictionary", "K\1" + text("a") + "Ns"),
      pickled("odd items", "is no dictionary", "}(Nu"),
      pickled("tensor of nothing", "lacks its storage",
              global("torch._utils", "_rebuild_tensor_v2") + ")R"),
      pickled("parameter of nothing", "is no tensor",
              global("torch._utils", "_rebuild_parameter") + "(NtR"),
      pickled("storage of nothing", "no known class", "NQ"),
      pickled("storage of text", "no known class",
              "(" + text("storage") + text("x") + text("0") + text("cpu") + number(1) + "tQ"),
      pickled("storage without a size", "lacks its key or its size",
              "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") +
                  "NtQ"),
      pickled("only a number", "no dictionary of tensors", "K\1"),
      pickled("no tensors", "no dictionary of tensors", "}" + text("epoch") + "K\3s"),
      pickled("dictionary in itself", "no dictionary of tensors",
              "}" + std::string("q\0", 2) + text("model") + std::string("h\0s", 3)),
      pickled("200000 marks", "more than there is", deep),
      pickled("400000 lists", "more than 250000 values", many),
      pickled("a list in itself", "1000000 steps", loops + loops.substr(3)),
      viewing("storage smaller than its strides", "beyond its storage", 0, {2, 2}, {3, 1}),
      viewing("one beyond", "beyond its storage", 1, {4}, {1}),
      viewing("offset beyond", "beyond its storage", 4, {1}, {1}),
      viewing("negative offset", "beyond its storage", -1, {1}, {1}),
      viewing("offset overflows", "beyond its storage", INT64_MAX, {2}, {1}),
      viewing("negative size", "no natural number", 0, {-2}, {1}),
      viewing("negative stride", "no natural number", 3, {2}, {-1}),
      viewing("strides overflow", "beyond its storage", 0, {INT64_MAX, 3}, {INT64_MAX, 1}),
      viewing("overflowing dims", "beyond its storage", 0, {4194305, 4194305, 211106198978564},
              {0, 0, 0}),
      viewing("zero hides overflow", "beyond its storage", 0, {0, INT64_MAX, INT64_MAX}, {0, 0, 0}),
      viewing("one element, repeated", "repeats the elements", 0, {1'000'000'000}, {0}),
      viewing("too few strides", "beyond its storage", 0, {2, 2}, {1}),
      viewing("7 dimensions", "7 dimensions", 0, {1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}),
      hostile("no such storage", "no storage \"../../x\"",
              pytorch_of(state(tensor(storage(4, "../../x"), 0, {1}, {1})), "")),
      hostile("storage too short", "has 12 bytes",
              pytorch_of(state(tensor(storage(4), 0, {1}, {1})), std::string(12, 'x'))),
      hostile("storage of 2^62", "has 16 bytes",
              pytorch_of(state(tensor(storage(INT64_MAX / 2), 0, {1}, {1})), std::string(16, 'x'))),
      hostile("complex numbers", "\"torch.ComplexFloatStorage\"",
              pytorch_of(state(tensor(storage(4, "0", "ComplexFloatStorage"), 0, {1}, {1})), "")),
      hostile("shape that is none", "has no shape",
              pytorch_of("}" + text("w") + global("torch._utils", "_rebuild_tensor_v2") + "(" +
                             storage(4) + number(0) + text("x") + tuple({1}) + "\x89}tRs",
                         std::string(16, 'x'))),
      hostile("shape of strings", "no natural number",
              pytorch_of("}" + text("w") + global("torch._utils", "_rebuild_tensor_v2") + "(" +
                             storage(4) + number(0) + text("x") + "\x85" + tuple({1}) + "\x89}tRs",
                         std::string(16, 'x'))),
      hostile(
          "name of 1 MB", "a name of 1048576 bytes",
          pytorch_of("}" + text(std::string(1 << 20, 'n')) + tensor(storage(4), 0, {1}, {1}) + "s",
                     std::string(16, 'x'))),
      {"8000 views, one twice", "twice", many_tensors},
      hostile("bare pickle", "save it again with torch.save",
              "\x80\x02" + global("os", "system") + "."),
  };
}

HostileFiles hostile_arrays() {
  const std::string npy = npy_of(kFourFloats, std::string(16, 'x'));
  std::string long_header = npy_of(kFourFloats, "", 2);
  overwrite(long_header, 8, UINT32_MAX);
  return {
      array("object dtype", "Python objects",
            "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }"),
      array("records", "records",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }"),
      array("big-endian", "little-endian",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }"),
      array("unknown dtype", "not supported",
            "{'descr': '<c8', 'fortran_order': False, 'shape': (4,), }"),
      array("negative dim", "cannot be used",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }"),
      array("overflowing dims", "cannot be used",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4194305, 4194305, "
            "211106198978564), }"),
      array("dim 2^64", "cannot be used",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,), }"),
      array("float dim", "broken near",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4.0,), }"),
      array("7 dimensions", "cannot be used",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 4), }"),
      array("code for a shape", "broken near",
            "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').system('id'), }"),
      array("no shape", "no 'shape'", "{'descr': '<f4', 'fortran_order': False, }"),
      array("a key twice", "unexpected key",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"),
      array("another key", "unexpected key", "{'descr': '<f4', 'x': 1, 'fortran_order': False, }"),
      array("text behind", "broken near",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), } + 1"),
      array("unclosed", "broken near", "{'descr': '<f4"),
      array("empty header", "broken near", ""),
      array("shape too small", "needs 12",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"),
      array("shape too large", "needs 4000000000",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }"),
      hostile("header of 4 GB", "header of 4294967295 bytes", npz_of(long_header)),
      hostile("header beyond the member", "truncated", npz_of(npy.substr(0, 40))),
      hostile("version 9", "version 9.0", npz_of(npy_of(kFourFloats, std::string(16, 'x'), 9))),
      hostile("no magic", "not a .npy file", npz_of("this is a text, and a longer one too")),
      hostile("empty member", "not a .npy file", npz_of("")),
      hostile("damaged deflate", "does not inflate",
              zip_of({{"a.npy", std::string(40, '\xff'), true, npy.size()}})),
      hostile("deflated too short", "does not inflate",
              zip_of({{"a.npy", deflate(npy.substr(0, 20)), true, npy.size()}})),
      hostile("deflated too long", "does not inflate", deflated_npz(npy + "x", npy.size())),
      hostile("claims 4 GB", "does not inflate", deflated_npz(npy, 4'000'000'000)),
      {"zip bomb", "that is no compressed checkpoint", bomb},
  };
}

}  // namespace vitrum::test
