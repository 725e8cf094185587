# The server: a library of its own, linked by the binary and the tests alone. Its page and the description of its interface
# become string literals.
find_package(Boost 1.74 REQUIRED)  # headers
set(OPENSSL_USE_STATIC_LIBS ${VITRUM_WHEEL})  # what a wheel does not use of it is left out
find_package(OpenSSL REQUIRED)
set(page ${PROJECT_SOURCE_DIR}/vitrum/serve/page)
set(page_files index.html page.css page.js docs.html openapi.json)
file(READ ${page}/index.html VITRUM_SERVE_HTML)
file(READ ${page}/page.css VITRUM_SERVE_STYLE)
file(READ ${page}/page.js VITRUM_SERVE_SCRIPT)
file(READ ${page}/docs.html VITRUM_SERVE_DOCS)
file(READ ${page}/openapi.json VITRUM_SERVE_OPENAPI)
list(TRANSFORM page_files PREPEND ${page}/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_files})
configure_file(${page}/assets.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/serve/assets.cpp @ONLY)

file(GLOB serve_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/vitrum/serve/*.cpp)
add_library(vitrum_serve STATIC ${serve_sources} ${PROJECT_BINARY_DIR}/generated/vitrum/serve/assets.cpp)
vitrum_flags(vitrum_serve)
target_compile_options(vitrum_serve PRIVATE $<$<CONFIG:Release>:-O2>)
target_compile_definitions(vitrum_serve PRIVATE VITRUM_VERSION="${PROJECT_VERSION}" BOOST_ASIO_NO_DEPRECATED
  BOOST_BEAST_USE_STD_STRING_VIEW)
target_link_libraries(vitrum_serve PUBLIC vitrum PRIVATE Boost::headers OpenSSL::SSL OpenSSL::Crypto ${VITRUM_LIBRARIES})
