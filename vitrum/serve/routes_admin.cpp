// What the admin socket offers: models are loaded and unloaded by the names of the configuration,
// never by a path or URL.
#include "vitrum/core/json_text.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {

void add_admin_routes(Router& router, Context& context) {
  const auto change = [&](const char* pattern, auto f) {
    router.add({.method = "POST",
                .pattern = pattern,
                .handle = [f, &context](ExchangePtr e, const PathParameters& p) {
                  guarded(e, ErrorForm::kPlain, [&] {
                    f(context.repository, p.at("model"));
                    e->respond({.body = "{}"});
                  });
                }});
  };
  change("/v2/repository/models/{model}/load",
         [](Repository& r, const std::string& name) { r.reload(name); });
  change("/v2/repository/models/{model}/unload",
         [](Repository& r, const std::string& name) { r.unload(name); });
  router.add({.method = "POST",
              .pattern = "/v2/repository/index",
              .handle = [&context](ExchangePtr e, const PathParameters&) {
                JsonWriter json;
                json.begin_array();
                for (const ModelPtr& model : context.repository.all())
                  json.begin_object()
                      .field("name", model->name())
                      .field("version", model->version())
                      .field("state", "READY")
                      .end_object();
                e->respond({.body = json.end_array().str()});
              }});
}

}  // namespace vitrum::serve
