#include "vitrum/fetch/curl.h"

#include "vitrum/core/error.h"
#include "vitrum/core/shared_library.h"

namespace vitrum {
namespace {

template <class Function>
void find(const SharedLibrary& library, const char* name, Function& function) {
  if (!library.find(name, function))
    fail("libcurl.so.4 of this system is too old: it has no {}", name);
}

Curl open() {
  const SharedLibrary library{"libcurl.so.4", "libcurl-gnutls.so.4"};  // the same interface
  if (!library) fail("downloads need libcurl.so.4; install the package libcurl4");
  Curl c;
  find(library, "curl_global_init", c.global_init);
  find(library, "curl_easy_init", c.easy_init);
  find(library, "curl_easy_cleanup", c.easy_cleanup);
  find(library, "curl_easy_reset", c.easy_reset);
  find(library, "curl_easy_setopt", c.easy_setopt);
  find(library, "curl_easy_perform", c.easy_perform);
  find(library, "curl_easy_getinfo", c.easy_getinfo);
  find(library, "curl_easy_strerror", c.easy_strerror);
  find(library, "curl_slist_append", c.slist_append);
  find(library, "curl_slist_free_all", c.slist_free_all);
  find(library, "curl_url", c.url);
  find(library, "curl_url_cleanup", c.url_cleanup);
  find(library, "curl_url_set", c.url_set);
  find(library, "curl_url_get", c.url_get);
  find(library, "curl_free", c.free);
  if (c.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) fail("libcurl cannot be started");
  return c;
}

}  // namespace

const Curl& curl() {
  static const Curl table = open();
  return table;
}

}  // namespace vitrum
