#include <fmt/format.h>

#include "tests/support/hostile_files.h"
#include "tests/support/tar_files.h"

namespace vitrum::test {
namespace {

HostileFile tar(std::string name, std::string part, const TarPart& member) {
  return hostile(std::move(name), std::move(part), tar_of({member}));
}

// Before a good member.
HostileFile extended(std::string name, std::string part, const std::string& records,
                     char type = 'x') {
  return hostile(std::move(name), std::move(part),
                 tar_of({{"PaxHeaders/a", records, type}, {"a.jpg", "x"}}));
}

HostileFile index(std::string name, std::string part, std::string_view samples,
                  std::string_view shards = "shards 1\n4096 0 - a.tar\n",
                  std::string_view classes = "classes 1\ncat\n") {
  return hostile(std::move(name), std::move(part),
                 shard_index_of(fmt::format("vitrum shards 1\n{}{}samples 1\n{}\n", classes, shards,
                                            samples)));
}

std::string many_extensions() {
  std::string all;
  const std::string one = tar_part({"x", pax_record("path", "b.jpg"), 'x'});
  for (int i = 0; i < 20'000; ++i) all += one;
  return all;
}

}  // namespace

HostileFiles hostile_tars() {
  const std::string good = tar_of({{"a.jpg", "12345"}, {"a.cls", "3"}});
  const std::string huge("\x7f\xff\xff\xff\xff\xff\xff\xff", 8), wide(11, '\xff');
  return {
      hostile("empty", "cut short, or no tar archive", ""),
      hostile("a text", "cut short, or no tar archive", "hello"),
      hostile("a longer text", "is damaged, or this is no tar", std::string(2000, 'x')),
      hostile("gzip", "compressed one", "\x1f\x8b\x08" + std::string(1000, 'z')),
      hostile("cut in a header", "cut short", good.substr(0, 300)),
      hostile("cut in an image", "cut short or damaged", good.substr(0, 514)),
      hostile("cut behind an image", "ends at byte 1024", good.substr(0, 1024)),
      hostile("cut before its end", "ends at byte 2048", good.substr(0, 2048)),
      tar("wrong checksum", "the header at byte 0 is damaged", {.name = "a.jpg", .intact = false}),
      tar("size of a gigabyte", "claims 1073741824 bytes",
          {.name = "a.jpg", .data = "x", .size = "10000000000"}),
      tar("size that is text", "claims -1 bytes", {.name = "a.jpg", .size = "12x45678901"}),
      tar("size below zero", "claims -1 bytes", {.name = "a.jpg", .size = "-0000000001"}),
      tar("binary size below zero", "claims -1 bytes",
          {.name = "a.jpg", .size = base_256(0xff, wide)}),
      tar("binary size of 2^63 - 1", "claims 9223372036854775807 bytes",
          {.name = "a.jpg", .size = base_256(0x80, huge)}),
      tar("binary size of 2^88 - 1", "claims -1 bytes",
          {.name = "a.jpg", .size = base_256(0x80, wide)}),
      tar("link", "'a.jpg' is a link", {.name = "a.jpg", .type = '2'}),
      tar("hard link", "'a.jpg' is a link", {.name = "a.jpg", .type = '1'}),
      tar("device", "'a.jpg' is a device", {.name = "a.jpg", .type = '3'}),
      tar("pipe", "'a.jpg' is a pipe", {.name = "a.jpg", .type = '6'}),
      tar("sparse", "'a.jpg' is a sparse file", {.name = "a.jpg", .type = 'S'}),
      tar("unknown type", "neither a file nor a folder", {.name = "a.jpg", .type = 'Q'}),
      tar("absolute", "'/etc/a.jpg' leads out", {.name = "/etc/a.jpg"}),
      tar("outside", "'a/../../b.jpg' leads out", {.name = "a/../../b.jpg"}),
      tar("outside behind a dot", "leads out", {.name = "./../b.jpg"}),
      tar("folder with contents", "claims contents", {.name = "a/", .data = "x", .type = '5'}),
      tar("line break in a name", "control character", {.name = "a\nb.jpg"}),
      extended("pax without a length", "header at byte 0 is damaged", "path=b.jpg\n"),
      extended("pax too long", "header at byte 0 is damaged", "99 path=b.jpg\n"),
      extended("pax of 2^64", "header at byte 0 is damaged", "18446744073709551616 path=b\n"),
      extended("pax below zero", "header at byte 0 is damaged", "-5 path=b.jpg\n"),
      extended("pax of nothing", "header at byte 0 is damaged", "2 \n"),
      extended("pax size below zero", "claims -1 bytes", pax_record("size", "-7")),
      extended("pax size of 2^62", "claims 4611686018427387904 bytes",
               pax_record("size", "4611686018427387904")),
      extended("pax path outside", "leads out", pax_record("path", "../b.jpg")),
      extended("pax NUL in a path", "leads out",
               pax_record("path", std::string_view("b.jpg\0/../c", 11))),
      extended("pax sparse", "is a sparse file", pax_record("GNU.sparse.major", "1")),
      extended("GNU long name outside", "leads out", "../" + std::string(200, 'b'), 'L'),
      hostile("pax of a gigabyte", "claims 1073741824 bytes",
              tar_of({{"x", "", 'x', "10000000000"}})),
      hostile("pax of nothing behind", "wants a member",
              tar_of({{"x", pax_record("path", "b.jpg"), 'x'}})),
      {"20000 pax headers", "ends at byte", many_extensions},
      hostile("two images", "has two images, 'a.jpg' and 'a.png'",
              tar_of({{"a.jpg", "x"}, {"a.cls", "1"}, {"a.png", "y"}})),
      hostile("label of several lines", "'a.cls' holds no label",
              tar_of({{"a.jpg", "x"}, {"a.cls", "cat\ndog"}})),
      hostile("label of no text", "'a.cls' holds no label",
              tar_of({{"a.jpg", "x"}, {"a.cls", "\xff\xfe"}})),
  };
}

HostileFiles hostile_shard_indexes() {
  const std::string good = shard_index_of("vitrum shards 1\nclasses 0\nshards 0\nsamples 0\n");
  std::string flipped = good;
  flipped[20] = 'X';
  return {
      hostile("empty", "no digest at its end", ""),
      hostile("only a line break", "no digest at its end", "\n"),
      hostile("a text", "no digest at its end", "hello\nworld\n"),
      hostile("cut", "no digest at its end", good.substr(0, good.size() - 1)),
      hostile("cut in the middle", "no digest at its end", good.substr(0, good.size() / 2)),
      hostile("damaged", "digest is wrong", flipped),
      hostile("later version", "this version reads", shard_index_of("vitrum shards 2\n")),
      hostile("nothing else", "line 2 is missing", shard_index_of("vitrum shards 1\n")),
      hostile("many classes", "counts 9999999999 classes",
              shard_index_of("vitrum shards 1\nclasses 9999999999\n")),
      hostile("classes below zero", "counts -1 classes",
              shard_index_of("vitrum shards 1\nclasses -1\n")),
      hostile("no number", "no number", shard_index_of("vitrum shards 1\nclasses x\n")),
      hostile("another count", "should count the classes",
              shard_index_of("vitrum shards 1\nshards 1\n")),
      hostile("lines behind", "behind the last sample",
              shard_index_of("vitrum shards 1\nclasses 0\nshards 0\nsamples 0\nmore\n")),
      index("shard outside", "is no shard", "0 512 5 0 a.jpg", "shards 1\n4096 0 - ../a.tar\n"),
      index("absolute shard", "is no shard", "0 512 5 0 a.jpg", "shards 1\n4096 0 - /etc/passwd\n"),
      index("hidden shard", "is no shard", "0 512 5 0 a.jpg", "shards 1\n4096 0 - .a.tar\n"),
      index("shard of a negative size", "is no shard", "0 512 5 0 a.jpg",
            "shards 1\n-4096 0 - a.tar\n"),
      index("digest of a shard", "no digest", "0 512 5 0 a.jpg", "shards 1\n4096 0 abc a.tar\n"),
      index("shard twice", "a shard twice", "0 512 5 0 a.jpg",
            "shards 2\n4096 0 - a.tar\n4096 0 - a.tar\n"),
      index("class without a name", "no name of a class", "0 512 5 0 a.jpg",
            "shards 1\n4096 0 - a.tar\n", "classes 1\n\n"),
      index("class of no text", "no name of a class", "0 512 5 0 a.jpg",
            "shards 1\n4096 0 - a.tar\n", "classes 1\n\xff\n"),
      index("no such shard", "has shard 1 of 1", "1 512 5 0 a.jpg"),
      index("shard below zero", "has shard -1 of 1", "-1 512 5 0 a.jpg"),
      index("no such class", "has label 1 of 1", "0 512 5 1 a.jpg"),
      index("label below -1", "has label -2", "0 512 5 -2 a.jpg"),
      index("over the end", "of a shard of 4096", "0 4000 97 0 a.jpg"),
      index("sum over 2^63", "of a shard of 4096", "0 4096 9223372036854775807 0 a.jpg"),
      index("in front of the shard", "of a shard of 4096", "0 0 5 0 a.jpg"),
      index("size below zero", "of a shard of 4096", "0 512 -1 0 a.jpg"),
      index("number over 2^63", "no number", "0 99999999999999999999 5 0 a.jpg"),
      index("too few fields", "too few fields", "0 512 5"),
      index("no name", "a name that is none", "0 512 5 0 "),
  };
}

}  // namespace vitrum::test
