# vitrum/report/page/* become string literals, so that a report needs no file beside the binary.
set(page ${PROJECT_SOURCE_DIR}/vitrum/report/page)
file(READ ${page}/page.css VITRUM_PAGE_STYLE)
file(READ ${page}/charts.js VITRUM_PAGE_CHARTS)
file(READ ${page}/page.js VITRUM_PAGE_SCRIPT)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page}/page.css ${page}/charts.js ${page}/page.js)
configure_file(${page}/page.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/report/page.cpp @ONLY)
target_sources(vitrum PRIVATE ${PROJECT_BINARY_DIR}/generated/vitrum/report/page.cpp)
