#include "vitrum/infer/match_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/weights/tensor_source.h"

namespace vitrum {
namespace {

constexpr size_t kMaxShown = 12;

using Index = std::map<std::string, std::set<int>, std::less<>>;  // name -> outputs

std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text)
    out +=
        c == '_' || c == '-' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::vector<std::string> synonyms(const std::string& label) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= label.size();) {
    const size_t end = std::min(label.find(',', at), label.size());
    const size_t begin = std::min(label.find_first_not_of(' ', at), end);
    if (begin < end) all.push_back(label.substr(begin, end - begin));
    at = end + 1;
  }
  return all;
}

// The ways to name an output, the best first.
class Names {
 public:
  explicit Names(const ModelSpec& model) : outputs_(model.config.classes()) {
    for (size_t i = 0; i < model.labels.size(); ++i) {
      const int output = static_cast<int>(i);
      labels_[model.labels[i]].insert(output);
      plain_[plain(model.labels[i])].insert(output);
      for (const std::string& name : synonyms(model.labels[i])) {
        parts_[name].insert(output);
        plain_[plain(name)].insert(output);
      }
    }
    for (size_t i = 0; i < model.class_ids.size(); ++i)
      ids_[model.class_ids[i]].insert(static_cast<int>(i));
  }

  std::set<int> find(const std::string& name) const {
    for (const Index* index : {&labels_, &ids_, &parts_})
      if (const auto found = index->find(name); found != index->end()) return found->second;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size() && number >= 0 &&
        number < outputs_)
      return {number};
    const auto found = plain_.find(plain(name));
    return found == plain_.end() ? std::set<int>{} : found->second;
  }

 private:
  int64_t outputs_;
  Index labels_, ids_, parts_, plain_;
};

LabelMatch in_order(size_t classes) {
  LabelMatch match{std::vector<int>(classes), true};
  std::iota(match.outputs.begin(), match.outputs.end(), 0);
  return match;
}

std::string numbers_of(const std::set<int>& outputs) {
  return join(std::vector<int64_t>(outputs.begin(), outputs.end()), " and ");
}

[[noreturn]] void fail_unmatched(const ModelSpec& model, std::vector<std::string> wrong) {
  const size_t count = wrong.size();
  if (count > kMaxShown) {
    wrong.resize(kMaxShown);
    wrong.push_back(fmt::format("and {} more", count - kMaxShown));
  }
  fail_input(
      "{} of the data's classes {} no label of {}: {}; name class folders by label, class id or "
      "number of the output",
      count, count == 1 ? "matches" : "match", model.architecture, join(wrong, ", "));
}

}  // namespace

LabelMatch match_labels(const Dataset& data, const ModelSpec& model) {
  const std::vector<std::string>& classes = data.classes();
  const auto count = static_cast<int64_t>(classes.size());
  if (model.labels.empty()) {
    if (count > model.config.classes())
      fail_input("the data has {} classes, {} only {} outputs and no labels to match", count,
                 model.architecture, model.config.classes());
    return in_order(classes.size());
  }
  std::vector<bool> used(classes.size(), false);
  for (int64_t i = 0; i < data.size(); ++i) used[static_cast<size_t>(data.label(i))] = true;
  const Names names(model);
  LabelMatch match{std::vector<int>(classes.size(), -1), false};
  std::vector<std::string> wrong;
  bool some = false;
  for (size_t i = 0; i < classes.size(); ++i) {
    if (!used[i]) continue;
    const std::set<int> found = names.find(classes[i]);
    some = some || !found.empty();
    if (found.size() == 1)
      match.outputs[i] = *found.begin();
    else
      wrong.push_back(found.empty() ? shown_name(classes[i])
                                    : fmt::format("{} (outputs {})", shown_name(classes[i]),
                                                  numbers_of(found)));
  }
  if (wrong.empty()) return match;
  if (!some && count == model.config.classes()) return in_order(classes.size());
  fail_unmatched(model, std::move(wrong));
}

int output_of(const ModelSpec& model, const std::string& name) {
  const std::set<int> found = Names(model).find(name);
  if (found.size() == 1) return *found.begin();
  if (found.size() > 1)
    fail_usage("class {} is not one output but {}; give its number", shown_name(name),
               numbers_of(found));
  std::vector<std::string> all;
  for (const std::string& label : model.labels)
    for (std::string& part : synonyms(label)) all.push_back(std::move(part));
  fail_usage("{} has no class {}{}", model.architecture, shown_name(name), did_you_mean(name, all));
}

}  // namespace vitrum
