# VITRUM_WHEEL: what python/make_wheel.py packs. A wheel is small, so its code is there once: libvitrum_c has the command line,
# too (one function more, vitrum_main), and the binary is a few instructions that call it. It runs on glibc 2.34 and libstdc++ 11
# (manylinux_2_34: RHEL 9, Ubuntu 22.04), whatever it is built on: two functions have a newer version where this is built, and
# their older one there, too.
if(NOT VITRUM_WHEEL)
  return()
endif()
target_sources(vitrum_c PRIVATE ${PROJECT_SOURCE_DIR}/cmake/older_symbols.cpp)
target_link_options(vitrum_c PRIVATE -Wl,--wrap=hypot
  -Wl,--wrap=_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
target_link_libraries(vitrum_c PRIVATE $<BUILD_INTERFACE:vitrum_command> $<BUILD_INTERFACE:vitrum_serve>)
target_link_libraries(vitrum-cli PRIVATE vitrum_c)
# The library is beside the binary in the build, and above it in the wheel.
set_target_properties(vitrum_c PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
set_target_properties(vitrum-cli PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN;$ORIGIN/..")
file(WRITE ${PROJECT_BINARY_DIR}/linked.txt "OpenSSL ${OPENSSL_VERSION}\n")  # for vitrum.build_info()
# What runs once, or waits for files: small rather than fast.
get_target_property(all_sources vitrum SOURCES)
list(FILTER all_sources INCLUDE REGEX "vitrum/(dist|export|fetch|models|report|text|weights)/")
set_property(SOURCE ${all_sources} APPEND PROPERTY COMPILE_OPTIONS -Os)  # beside those of generated files
set_source_files_properties(${all_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
target_compile_options(vitrum_command PRIVATE -Os)
