# Every library we use; packages.txt has the packages. Sets VITRUM_LIBRARIES, the ones that stay private to our
# sources, and VITRUM_HAS_CPU. cmake/vitrum-config.cmake.in repeats what users of a static library must link.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(webp REQUIRED IMPORTED_TARGET libwebp)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)  # compiled, not header-only

set(VITRUM_HAS_CPU OFF)
if(NOT VITRUM_CPU STREQUAL "OFF")
  find_package(OneDNN 2.6)
  find_package(OpenMP COMPONENTS CXX)  # oneDNN's thread pool: we tell it to keep to one thread
  if(OneDNN_FOUND AND OpenMP_CXX_FOUND)
    set(VITRUM_HAS_CPU ON)
  elseif(VITRUM_CPU STREQUAL "ON")
    message(FATAL_ERROR "VITRUM_CPU=ON needs oneDNN 2.6 or newer and OpenMP (Debian: libdnnl-dev)")
  else()
    message(WARNING "oneDNN was not found: building without the fast CPU backend (Debian: libdnnl-dev)")
  endif()
endif()

set(VITRUM_LIBRARIES
  Threads::Threads ZLIB::ZLIB JPEG::JPEG PNG::PNG PkgConfig::webp PkgConfig::tomlplusplus
  $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
if(VITRUM_HAS_CPU)
  list(APPEND VITRUM_LIBRARIES OneDNN::OneDNN OpenMP::OpenMP_CXX)
endif()
