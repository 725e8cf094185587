# VITRUM_RELEASE_DATE: the day of this version, as its heading in CHANGELOG.md has it ("## [1.2.3] - 2026-11-18").
set(changes ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${changes})
file(STRINGS ${changes} heading REGEX "^## \\[${PROJECT_VERSION}\\] - " LIMIT_COUNT 1)
string(REGEX REPLACE "^.* - " "" VITRUM_RELEASE_DATE "${heading}")
if(NOT VITRUM_RELEASE_DATE MATCHES "^[0-9]+-[0-9]+-[0-9]+$")
  message(FATAL_ERROR "CHANGELOG.md has no heading \"## [${PROJECT_VERSION}] - YEAR-MONTH-DAY\"")
endif()
