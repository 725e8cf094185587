#include "vitrum/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "vitrum/core/checked.h"
#include "vitrum/core/error.h"
#include "vitrum/core/text_limits.h"
#include "vitrum/weights/safetensors_dtype.h"

namespace vitrum {
namespace {

constexpr size_t kMaxEntries = 65'536;  // of the metadata
constexpr TextLimits kLimits{.token = SafetensorsFile::kMaxMetadata};

// Bytes of a tensor; nothing where they, or numel() on the way to them, do not fit into 63 bits.
std::optional<size_t> checked_bytes(const Shape& shape, DType dtype) {
  int64_t product = static_cast<int64_t>(size_of(dtype));
  for (const int64_t dim : shape) product = capped_mul(product, std::max<int64_t>(dim, 1));
  if (product == INT64_MAX) return std::nullopt;
  return static_cast<size_t>(shape.numel()) * size_of(dtype);
}

// Takes the header apart as the parser meets it: nothing is built of what is not wanted, and the
// first thing that is out of place ends it. A callback returns false for that.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::vector<TensorInfo>& tensors, std::map<std::string, std::string>& metadata)
      : tensors_(tensors), metadata_(metadata) {}

  const std::string& problem() const { return problem_; }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ == Place::kTop) return go(in_metadata_ ? Place::kMetadata : Place::kTensor);
    return misplaced("an object");
  }

  bool end_object() override {
    if (place_ == Place::kTensor && !finish_tensor()) return false;
    return go(Place::kTop);
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || (key_ != "shape" && key_ != "data_offsets"))
      return misplaced("an array");
    return go(Place::kNumbers);
  }

  bool end_array() override { return go(Place::kTensor); }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) return top_key(name);
    key_ = name;
    if (place_ == Place::kMetadata)
      return !metadata_.contains(key_) ||
             stop("\"__metadata__\" has the key {} twice", shown_name(key_));
    return field_key();
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      metadata_bytes_ += key_.size() + text.size();
      if (metadata_.size() == kMaxEntries || metadata_bytes_ > SafetensorsFile::kMaxMetadata)
        return stop("\"__metadata__\" has more than {} entries or {} bytes", kMaxEntries,
                    SafetensorsFile::kMaxMetadata);
      metadata_.emplace(key_, text);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return misplaced("a string");
    const auto dtype = safetensors_dtype(text);
    if (!dtype)
      return stop("tensor {} has the unsupported dtype {}", tensor_name(), shown_name(text));
    tensors_.back().dtype = *dtype;
    return true;
  }

  bool number_unsigned(number_unsigned_t n) override {
    if (place_ != Place::kNumbers) return misplaced("a number");
    if (key_ == "shape") return add_dim(n);
    if (offsets_.size() == 2)
      return stop("tensor {} has more than two data_offsets", tensor_name());
    offsets_.push_back(n);
    return true;
  }

  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool number_integer(number_integer_t) override { return misplaced("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return misplaced("a fraction or a huge number");
  }
  bool binary(binary_t&) override { return misplaced("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return stop("it is not valid JSON at byte {}", position);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kNumbers };

  bool go(Place place) {
    place_ = place;
    return true;
  }

  template <class... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    problem_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  bool misplaced(std::string_view what) {
    if (place_ == Place::kStart) return stop("it is {}, not an object", what);
    if (in_metadata_) return stop("\"__metadata__\" holds {} where a string belongs", what);
    if (place_ == Place::kTop) return stop("tensor {} is {}, not an object", tensor_name(), what);
    return stop("tensor {} has {} in {}", tensor_name(), what, shown_name(key_));
  }

  bool top_key(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_)
      return !std::exchange(metadata_seen_, true) || stop("it has \"__metadata__\" twice");
    if (tensors_.size() == SafetensorsFile::kMaxTensors)
      return stop("it has more than {} tensors", SafetensorsFile::kMaxTensors);
    if (name.size() > SafetensorsFile::kMaxName)
      return stop("tensor {} has a name of {} bytes", shown_name(name), name.size());
    tensors_.emplace_back().name = name;
    offsets_.clear();
    fields_seen_ = {};
    return true;
  }

  bool field_key() {
    constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};
    const auto field = std::find(kFields.begin(), kFields.end(), key_);
    if (field == kFields.end())
      return stop("tensor {} has the unknown key {}", tensor_name(), shown_name(key_));
    bool& seen = fields_seen_[static_cast<size_t>(field - kFields.begin())];
    return !std::exchange(seen, true) ||
           stop("tensor {} has the key {} twice", tensor_name(), shown_name(key_));
  }

  bool add_dim(uint64_t n) {
    Shape& shape = tensors_.back().shape;
    if (n > static_cast<uint64_t>(INT64_MAX))
      return stop("tensor {} has the dimension {}", tensor_name(), n);
    if (shape.rank() == Shape::kMaxRank)
      return stop("tensor {} has more than {} dimensions", tensor_name(), Shape::kMaxRank);
    shape.append(static_cast<int64_t>(n));
    return true;
  }

  bool finish_tensor() {
    TensorInfo& t = tensors_.back();
    if (!std::all_of(fields_seen_.begin(), fields_seen_.end(), std::identity()) ||
        offsets_.size() != 2)
      return stop("tensor {} lacks one of dtype, shape and two data_offsets", tensor_name());
    const auto wanted = checked_bytes(t.shape, t.dtype);
    if (!wanted) return stop("tensor {} has the impossible shape {}", tensor_name(), t.shape.str());
    if (offsets_[1] < offsets_[0] || offsets_[1] - offsets_[0] != *wanted)
      return stop("tensor {} of {} {} needs {} bytes, but its data_offsets are [{}, {}]",
                  tensor_name(), name_of(t.dtype), t.shape.str(), *wanted, offsets_[0],
                  offsets_[1]);
    t.offset = offsets_[0];
    t.bytes = *wanted;
    return true;
  }

  std::string tensor_name() const { return shown_name(tensors_.back().name); }

  std::vector<TensorInfo>& tensors_;
  std::map<std::string, std::string>& metadata_;
  Place place_ = Place::kStart;
  bool in_metadata_ = false, metadata_seen_ = false;
  std::string key_, problem_;
  size_t metadata_bytes_ = 0;
  std::vector<uint64_t> offsets_;
  std::array<bool, 3> fields_seen_{};
};

// The JSON text between the length and the data.
std::string_view header_text(const MappedFile& file) {
  uint64_t length = 0;
  if (file.size() < sizeof length)
    fail_input("'{}' is not a safetensors file: it has only {} bytes", file.path(), file.size());
  std::memcpy(&length, file.bytes().data(), sizeof length);
  if (length > SafetensorsFile::kMaxHeader)
    fail_input("'{}' is not a safetensors file: a header of {} bytes exceeds the format's {}",
               file.path(), length, SafetensorsFile::kMaxHeader);
  if (length > file.size() - sizeof length)
    fail_input("'{}' is truncated: its header has {} bytes, the file {}", file.path(), length,
               file.size());
  const auto* text = reinterpret_cast<const char*>(file.bytes().data()) + sizeof length;
  if (length == 0 || *text != '{')
    fail_input("'{}' is not a safetensors file: its header does not start with '{{'", file.path());
  return {text, length};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string_view header = header_text(file_);
  if (const std::string problem = json_problem(header, kLimits); !problem.empty())
    fail_input("'{}' has a bad safetensors header: it {}", path, problem);
  HeaderReader reader(tensors_, metadata_);
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader))
    fail_input("'{}' has a bad safetensors header: {}", path, reader.problem());
  data_start_ = sizeof(uint64_t) + header.size();
  index_names();
  validate_layout();
}

void SafetensorsFile::validate_layout() const {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : tensors_) order.push_back(&t);
  // An empty tensor may stand at the start of another one: it comes first.
  std::ranges::sort(order, {}, [](const TensorInfo* t) { return std::pair(t->offset, t->bytes); });
  const size_t available = file_.size() - data_start_;
  size_t end = 0;
  for (const TensorInfo* t : order) {
    if (t->offset != end)
      fail_input("'{}': tensor {} starts at byte {} of the data, expected {}: {}", path(),
                 shown_name(t->name), t->offset, end,
                 t->offset < end ? "it overlaps another" : "nothing describes the bytes before it");
    if (t->bytes > available - end)
      fail_input("'{}' is truncated: tensor {} ends at byte {} of the data, which has {}", path(),
                 shown_name(t->name), t->offset + t->bytes, available);
    end += t->bytes;
  }
  if (end != available)
    fail_input("'{}' has {} bytes after its last tensor: it is damaged or holds something else too",
               path(), available - end);
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(data_start_ + tensor.offset, tensor.bytes);
}

}  // namespace vitrum
