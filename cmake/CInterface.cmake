# libvitrum_c: everything behind vitrum/vitrum.h, in one shared library that exports those functions only.
add_library(vitrum_c SHARED vitrum/c/vitrum.cpp)
add_library(vitrum::vitrum_c ALIAS vitrum_c)
vitrum_flags(vitrum_c)
set(map ${PROJECT_SOURCE_DIR}/vitrum/c/exports.map)
target_sources(vitrum_c PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES vitrum/vitrum.h)
target_compile_definitions(vitrum_c PRIVATE VITRUM_VERSION="${PROJECT_VERSION}")
target_link_libraries(vitrum_c PRIVATE $<BUILD_INTERFACE:vitrum>)
target_link_options(vitrum_c PRIVATE -Wl,--version-script=${map} $<$<CONFIG:Release>:-s>)
set_target_properties(vitrum_c PROPERTIES CXX_VISIBILITY_PRESET hidden LINK_DEPENDS ${map}
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
