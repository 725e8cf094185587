#include "vitrum/fetch/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "vitrum/core/checked.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/text_limits.h"

namespace vitrum {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxListing = 4 << 20;  // bytes of one page
constexpr int kMaxPages = 20;

struct Entry {
  std::string name;
  int64_t size;
  DigestKind kind;
  std::string digest;
};

bool is_word(std::string_view text, std::string_view also) {
  return !text.empty() && std::ranges::all_of(text, [&](unsigned char c) {
    return std::isalnum(c) || also.find(static_cast<char>(c)) != also.npos;
  });
}

// ---- the listing ----

[[noreturn]] void bad_listing(const HubModel& model, std::string_view why) {
  fail_input("the list of files of {} from {} cannot be used: {}", model.id,
             host_of(model.endpoint), why);
}

bool is_safe(const std::string& path) {
  if (path.empty() || path[0] == '/' || path.find('\\') != path.npos) return false;
  for (const unsigned char c : path)
    if (c < ' ' || c == 127) return false;
  return ("/" + path + "/").find("/../") == std::string::npos;
}

// {"type": "file", "path": ..., "size": ..., "oid": git's, "lfs": {"oid": sha256, "size": ...}}
Entry parse_entry(const HubModel& model, const Json& j) {
  const auto is_digest = [](const Json& text, size_t digits) {
    return text.is_string() && text.get_ref<const std::string&>().size() == digits &&
           is_word(text.get_ref<const std::string&>(), "");
  };
  const std::string name = j.at("path");
  const Json lfs = j.value("lfs", Json());
  const Json oid = lfs.is_object() ? lfs.value("oid", Json()) : j.value("oid", Json());
  const Json size = lfs.is_object() ? lfs.value("size", Json()) : j.value("size", Json());
  if (!is_digest(oid, lfs.is_object() ? 64 : 40) || !size.is_number_unsigned() ||
      size.get<uint64_t>() > uint64_t{1} << 50)
    bad_listing(model, fmt::format("'{}' has no size and checksum", shown(name)));
  return {name, size.get<int64_t>(), lfs.is_object() ? DigestKind::kSha256 : DigestKind::kGitBlob,
          oid};
}

void parse_listing(const HubModel& model, const std::string& text, std::vector<Entry>& entries) {
  if (const std::string problem = json_problem(text); !problem.empty())
    bad_listing(model, "it " + problem);
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) bad_listing(model, "it is not a JSON array");
  for (const Json& j : list) {
    if (!j.is_object() || !j.value("path", Json()).is_string() ||
        !j.value("type", Json()).is_string())
      bad_listing(model, "an entry has no path and type");
    if (!is_safe(j["path"]))
      bad_listing(model, fmt::format("'{}' is not a name to write to",
                                     shown(j["path"].get<std::string>())));
    if (j["type"] == "file") entries.push_back(parse_entry(model, j));
  }
}

// "<https://...>; rel="next"" -> the URL
std::string next_page(const HttpAnswer& answer) {
  const std::string link = answer.header("link");
  const size_t begin = link.find('<'), end = link.find('>');
  if (link.find("rel=\"next\"") == link.npos || begin == link.npos || end == link.npos) return "";
  return begin < end ? link.substr(begin + 1, end - begin - 1) : "";
}

// The hub answers 401 for what does not exist, so as not to tell what is private.
[[noreturn]] void explain(const HubModel& model, const HttpAnswer& answer, const std::string& url) {
  const std::string code = answer.header("x-error-code"), host = host_of(model.endpoint);
  if (code == "GatedRepo" || (answer.status == 403 && code.empty()))
    fail_input("{} is gated: accept its terms at {}/{} and set HF_TOKEN to a token of that account",
               model.id, model.endpoint, model.id);
  if (code == "RevisionNotFound")
    fail_input("{} has no revision '{}' at {}", model.id, model.revision, host);
  if (code == "RepoNotFound" || answer.status == 401 || answer.status == 404)
    fail_input("there is no model {} at {}, or it is private and HF_TOKEN does not open it",
               model.id, host);
  throw status_error(answer, url);
}

// ---- the choice ----

// "model-00001-of-00003.safetensors"
bool is_shard(const std::string& name, const std::string& stem, const std::string& end) {
  return name.starts_with(stem + "-") && name.ends_with(end) && is_word(name, "-._");
}

constexpr std::array kBeside = {"preprocessor_config.json",
                                "processor_config.json",
                                "tokenizer.json",
                                "tokenizer_config.json",
                                "vocab.json",
                                "merges.txt",
                                "spiece.model"};

bool is_config(const std::string& name) {
  return name == "config.json" || name == "open_clip_config.json";
}

std::vector<Entry> choose(const HubModel& model, const std::vector<Entry>& all) {
  std::vector<Entry> chosen;
  const auto take = [&](const auto& wanted) {
    const size_t before = chosen.size();
    std::ranges::copy_if(all, std::back_inserter(chosen), wanted);
    return chosen.size() > before;
  };
  const auto named = [](std::string name) {
    return [name](const Entry& e) { return e.name == name; };
  };
  const auto weights = [&](const std::string& stem, const std::string& end) {
    return take(named(stem + end)) ||
           (take(named(stem + end + ".index.json")) &&
            take([&](const Entry& e) { return is_shard(e.name, stem, end); }));
  };
  const bool described = take(named("config.json"));
  const bool open_clip = !described && take(named("open_clip_config.json"));
  if (!described && !open_clip) fail_input("{} has no config.json", model.id);
  // Pixels, and of models that take texts how those become numbers.
  for (const char* name : kBeside) take(named(name));
  if (open_clip) {
    if (!take(named("open_clip_model.safetensors")) && !take(named("open_clip_pytorch_model.bin")))
      fail_input("{} has no open_clip_model.safetensors", model.id);
    return chosen;
  }
  if (!weights("model", ".safetensors") && !weights("pytorch_model", ".bin"))
    fail_input("{} has neither model.safetensors nor pytorch_model.bin", model.id);
  return chosen;
}

std::string url_of(const HubModel& model, const Entry& entry) {
  return fmt::format("{}/{}/resolve/{}/{}", model.endpoint, model.id, model.revision, entry.name);
}

// Where transformers and timm keep what they downloaded; a blob is called after its checksum.
std::string cached(const HubModel& model, const Entry& entry) {
  if (model.cache.empty()) return "";
  std::string folder = "models--" + model.id;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  return fmt::format("{}/hub/{}/blobs/{}", model.cache, folder, entry.digest);
}

void check_revision(const std::string& revision) {
  if (!is_word(revision, "-._/") || !is_safe(revision))
    fail_usage("'{}' is not a revision: expected a branch, a tag or a commit", revision);
}

// A directory that holds another model, a run's perhaps: this one's files would be in the place of
// its own. Large files tell by their size; config.json, which every model has, by its bytes.
void refuse_other_files(const HubModel& model, const std::vector<RemoteFile>& files) {
  constexpr int64_t kReadWhole = 16 << 20;
  for (const RemoteFile& file : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file.path, error);
    if (error || size == 0) continue;
    const bool same =
        static_cast<int64_t>(size) == file.size &&
        (file.size > kReadWhole || file_is(file.path, file.size, file.kind, file.digest));
    if (!same)
      fail_usage(
          "'{}' is there already and is not that of {}; choose another place with --to, or "
          "give --force to replace it",
          file.path, model.id);
  }
}

// Where files are replaced, what says which model it is goes first and comes last: broken off, the
// folder holds no model rather than one's config with another's weights.
void make_way(std::vector<RemoteFile>& files) {
  const auto is_other = [](const RemoteFile& f) {
    return !is_config(std::filesystem::path(f.path).filename().string());
  };
  std::ranges::stable_partition(files, is_other);
  for (const RemoteFile& file : files)
    if (std::error_code ignored;
        !is_other(file) && !file_is(file.path, file.size, file.kind, file.digest))
      std::filesystem::remove(file.path, ignored);
}

}  // namespace

bool is_of_hub_model(const std::string& name) {
  const auto is_weights = [&](const std::string& stem, const std::string& end) {
    return name == stem + end || name == stem + end + ".index.json" || is_shard(name, stem, end);
  };
  return is_config(name) || std::ranges::find(kBeside, name) != kBeside.end() ||
         is_weights("model", ".safetensors") || is_weights("pytorch_model", ".bin") ||
         is_weights("open_clip_model", ".safetensors") ||
         is_weights("open_clip_pytorch_model", ".bin") || name.ends_with(".part");
}

void check_hub_id(const std::string& id) {
  const size_t slash = id.find('/');
  const auto is_name = [](std::string_view name) {
    return is_word(name, "-._") && name.size() <= 96 && name.find("..") == name.npos &&
           name.find("--") == name.npos && std::isalnum(static_cast<unsigned char>(name[0]));
  };
  const std::string_view text = id;
  if (slash == id.npos ? is_name(text)
                       : is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1)))
    return;
  fail_usage("'{}' is not a model of the hub: expected owner/name", shown(id));
}

Downloaded download_model(HttpClient& client, const HubModel& given, const std::string& to,
                          int64_t max_bytes, const DownloadOptions& options, bool replace) {
  HubModel model = given;
  check_hub_id(model.id), check_revision(model.revision);
  while (model.endpoint.ends_with('/')) model.endpoint.pop_back();
  for (size_t at; (at = model.revision.find('/')) != std::string::npos;)
    model.revision.replace(at, 1, "%2F");

  std::vector<Entry> entries;
  std::string url =
      fmt::format("{}/api/models/{}/tree/{}", model.endpoint, model.id, model.revision);
  for (int page = 0; !url.empty() && page < kMaxPages; ++page) {
    std::string text;
    const HttpAnswer answer =
        with_retries(client, options, [&] { return client.get_text(url, kMaxListing, text); });
    if (answer.stopped) return {.stopped = true};
    if (answer.status != 200 || !answer.problem.empty()) explain(given, answer, url);
    parse_listing(model, text, entries);
    url = next_page(answer);
  }

  Downloaded result;
  std::vector<RemoteFile> files;
  for (const Entry& entry : choose(model, entries)) {
    result.files.push_back(entry.name);
    result.bytes = capped_add(result.bytes, entry.size);
    files.push_back({.path = to + "/" + entry.name,
                     .urls = {url_of(model, entry)},
                     .size = entry.size,
                     .kind = entry.kind,
                     .digest = entry.digest,
                     .local = cached(model, entry)});
  }
  if (result.bytes > max_bytes)
    fail_input("{} has {:.2f} GB, more than the {:.2f} GB that --max-size allows", model.id,
               static_cast<double>(result.bytes) / 1e9, static_cast<double>(max_bytes) / 1e9);
  if (!replace) refuse_other_files(model, files);
  const DownloadLock lock(to);
  if (replace) make_way(files);
  result.stopped = !download_all(client, files, options);
  return result;
}

}  // namespace vitrum
