# libvitrum_c: everything behind vitrum/vitrum.h, in one shared library that exports those functions only; and a static one
# for programs that link everything into themselves (it needs libvitrum.a and what that needs).
file(GLOB c_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/vitrum/c/*.cpp)
add_library(vitrum_c_objects OBJECT ${c_sources})
vitrum_flags(vitrum_c_objects)
target_compile_definitions(vitrum_c_objects PRIVATE VITRUM_VERSION="${PROJECT_VERSION}")
target_link_libraries(vitrum_c_objects PRIVATE vitrum)
set_target_properties(vitrum_c_objects PROPERTIES CXX_VISIBILITY_PRESET hidden)

add_library(vitrum_c SHARED $<TARGET_OBJECTS:vitrum_c_objects>)
add_library(vitrum_c_static STATIC $<TARGET_OBJECTS:vitrum_c_objects>)
foreach(library vitrum_c vitrum_c_static)
  add_library(vitrum::${library} ALIAS ${library})
  target_sources(${library} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES vitrum/vitrum.h)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME vitrum_c LINKER_LANGUAGE CXX)
endforeach()
target_link_libraries(vitrum_c_static PRIVATE vitrum)

set(map ${PROJECT_SOURCE_DIR}/vitrum/c/exports.map)
vitrum_flags(vitrum_c)
target_link_libraries(vitrum_c PRIVATE $<BUILD_INTERFACE:vitrum>)
target_link_options(vitrum_c PRIVATE -Wl,--version-script=${map} $<$<CONFIG:Release>:-s>)
set_target_properties(vitrum_c PROPERTIES LINK_DEPENDS ${map}
  INSTALL_RPATH $ORIGIN VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
