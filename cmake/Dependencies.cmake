# Every library we use; packages.txt has the packages. Sets VITRUM_LIBRARIES, the ones that stay private to our
# sources, and VITRUM_HAS_CPU. cmake/vitrum-config.cmake.in repeats what users of a static library must link.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(CURL REQUIRED)  # its headers; the library is opened when a download needs it
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(webp REQUIRED IMPORTED_TARGET libwebp)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)  # compiled, not header-only

# The CPU backend is written for x86-64; elsewhere the reference backend stands in.
set(VITRUM_HAS_CPU OFF)
if(NOT VITRUM_CPU STREQUAL "OFF")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(VITRUM_HAS_CPU ON)
  elseif(VITRUM_CPU STREQUAL "ON")
    message(FATAL_ERROR "VITRUM_CPU=ON needs an x86-64 processor")
  endif()
endif()

set(VITRUM_LIBRARIES
  Threads::Threads ZLIB::ZLIB JPEG::JPEG PNG::PNG PkgConfig::webp PkgConfig::tomlplusplus
  ${CMAKE_DL_LIBS}
  $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
