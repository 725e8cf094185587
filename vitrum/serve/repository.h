// The models that are served, by name. Whoever answers a request holds its model, so a swap lets
// requests under way end on the old one.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vitrum/serve/options.h"
#include "vitrum/serve/served_model.h"

namespace vitrum::serve {

class Repository {
 public:
  explicit Repository(const ServeOptions& options);

  // Loads every configured model anew; where one cannot be loaded the old one stays. Returns what
  // went wrong, a line each. At the start there is no old one, so the first failure is thrown.
  void load_all();
  std::vector<std::string> reload();
  void reload(const std::string& name);  // throws; the old one stays
  void unload(const std::string& name);
  void configure(std::vector<ModelSource> models);  // what reload() loads

  ModelPtr find(std::string_view name) const;  // "": the first one; null where there is none
  std::vector<ModelPtr> all() const;           // in the configured order
  bool is_configured(std::string_view name) const;

  // Told of each model before it is published.
  std::function<void(ServedModel&)> on_load = {};

 private:
  ModelPtr load(const ModelSource& source);
  void publish(ModelPtr model);

  ServeOptions options_;
  std::vector<std::shared_ptr<SharedDevice>> devices_;  // one for each replica
  mutable std::mutex mutex_;
  std::vector<ModelSource> sources_;
  std::map<std::string, ModelPtr, std::less<>> models_;
};

}  // namespace vitrum::serve
