#include "vitrum/serve/assets.h"
#include "vitrum/serve/routes.h"

namespace vitrum::serve {

void add_page_routes(Router& router, Context& context) {
  constexpr const char* kPolicy =
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
      "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
  const auto asset = [&](const char* path, std::string_view text, const char* type) {
    router.add({.method = "GET",
                .pattern = path,
                .handle =
                    [text, type, kPolicy](ExchangePtr e, const PathParameters&) {
                      e->respond({.content_type = type,
                                  .body = std::string(text),
                                  .headers = {{"Content-Security-Policy", kPolicy},
                                              {"Referrer-Policy", "no-referrer"},
                                              {"Cache-Control", "no-cache"}}});
                    },
                .open = true});
  };
  asset("/", kPageHtml, "text/html; charset=utf-8");
  asset("/page.css", kPageStyle, "text/css; charset=utf-8");
  asset("/page.js", kPageScript, "text/javascript; charset=utf-8");
  asset("/docs", kDocsHtml, "text/html; charset=utf-8");
  asset("/openapi.json", kOpenApi, "application/json");
  router.add({.method = "GET",
              .pattern = "/metrics",
              .handle = [&context](ExchangePtr e, const PathParameters&) {
                e->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                            .body = context.metrics.text(
                                static_cast<int64_t>(context.repository.all().size()))});
              }});
}

}  // namespace vitrum::serve
