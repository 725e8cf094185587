// Each adds its routes to a table.
#pragma once
#include "vitrum/serve/context.h"
#include "vitrum/serve/router.h"

namespace vitrum::serve {

void add_v1_routes(Router& router, Context& context);
void add_openai_routes(Router& router, Context& context);
void add_oip_routes(Router& router, Context& context);
void add_page_routes(Router& router, Context& context);   // the page, /openapi.json, /metrics
void add_admin_routes(Router& router, Context& context);  // for the admin socket alone
inline void add_public_routes(Router& router, Context& context) {
  add_v1_routes(router, context);
  add_openai_routes(router, context);
  add_oip_routes(router, context);
  add_page_routes(router, context);
}

// A whole number of the query in [low, high], or `usual` where it is not given; throws what is
// wrong with it.
int64_t query_number(const Request& request, std::string_view name, int64_t usual, int64_t low,
                     int64_t high);
// The model that is asked for, or null after the exchange was answered with 404 or 503.
ModelPtr model_for(Context& context, const ExchangePtr& exchange, std::string_view name,
                   ErrorForm errors = ErrorForm::kPlain);
// Calls `body`; what it throws becomes the answer.
template <class Body>
void guarded(const ExchangePtr& exchange, ErrorForm errors, const Body& body);

}  // namespace vitrum::serve

#include "vitrum/core/error.h"

namespace vitrum::serve {

template <class Body>
void guarded(const ExchangePtr& exchange, ErrorForm errors, const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    exchange->respond(
        error_response(e.kind() == ErrorKind::kExhausted ? 503 : 400, e.what(), errors));
  } catch (const std::bad_alloc&) {
    exchange->respond(error_response(503, "out of memory", errors));
  } catch (const std::exception&) {
    exchange->respond(error_response(500, "the request failed", errors));
  }
}

}  // namespace vitrum::serve
