// Nothing that is read may be written over, and nothing of somebody else's without being asked to:
// every verb that writes files says here what it reads and asks before it writes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"
#include "vitrum/data/dataset.h"

namespace vitrum {

// What a verb writes, and so may replace unasked. An empty file is nobody's loss.
enum class Content : uint8_t { kNpy, kSafetensors, kTable, kOnnx, kPng, kSvg, kHtml, kZip, kMan };

// Usage errors all of them. Files are told apart by device and inode, so links, `..` and hard links
// hide nothing.
class OutputGuard {
 public:
  explicit OutputGuard(bool force) : force_(force) {}

  // ---- what is read ----
  // A file, and where that is the index of a sharded model its shards; or a directory with all that
  // may come into it.
  void reads(const std::string& path);
  void reads_data(const std::string& spec);                 // as the command line spells DATA
  void reads_images(const Dataset& images);                 // the files themselves
  void reads_list(const std::vector<std::string>& inputs);  // "-": standard input; "shards:DIR"
  void reads_run(const std::string& run);                   // but for pages of a report

  // ---- what is written ----
  // Neither what is read nor inside of it; --force changes nothing about that.
  void refuse_read(const std::string& path) const;
  // Of a folder that is replaced as a whole: nothing that is read lies in it either.
  void refuse_around_read(const std::string& path) const;
  // And where it exists, of the kind that the verb writes, or with --force.
  void file(const std::string& path, Content content) const;
  // A model's directory: another model may be in it, or what a killed process wrote of one.
  void model_directory(const std::string& path) const;
  // For what a directory holds: refuses it without --force. "'D' {why}".
  void require_force(const std::string& path, const std::string& why) const;

 private:
  struct Input {
    std::string name;  // for messages
    std::filesystem::path real;
    bool directory = false;
  };
  const Input* linked_input(const std::string& path) const;

  std::vector<Input> inputs_;
  bool force_;
};

// A folder to download to is empty or holds a file that the download `knows`, perhaps in part.
void guard_download(const std::string& to, bool force,
                    const std::function<bool(const std::string&)>& knows);

// --force as an option of a verb.
Option force_option(bool& force);

// Names in a directory, but for hidden ones; none where it is not a directory.
std::vector<std::string> entries_of(const std::string& directory);

}  // namespace vitrum
