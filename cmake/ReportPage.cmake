# vitrum/report/page/* become string literals, so that a report needs no file beside the binary.
set(page ${PROJECT_SOURCE_DIR}/vitrum/report/page)
file(READ ${page}/page.css VITRUM_PAGE_STYLE)
foreach(part charts images classes page)  # in the order they run
  file(READ ${page}/${part}.js text)
  string(APPEND VITRUM_PAGE_SCRIPT "${text}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page}/${part}.js)
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page}/page.css)
configure_file(${page}/page.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/report/page.cpp @ONLY)
target_sources(vitrum PRIVATE ${PROJECT_BINARY_DIR}/generated/vitrum/report/page.cpp)
