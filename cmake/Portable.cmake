# VITRUM_PORTABLE: the binary and libvitrum_c run on glibc 2.34 and libstdc++ 11 (manylinux_2_34: RHEL 9, Ubuntu 22.04), whatever
# they are built on. Two functions have a newer version where this is built, and their older one there, too.
option(VITRUM_PORTABLE "Bind to older versions of glibc's and libstdc++'s functions, for wheels" OFF)
if(VITRUM_PORTABLE)
  foreach(target vitrum_c vitrum-cli)
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/older_symbols.cpp)
    target_link_options(${target} PRIVATE -Wl,--wrap=hypot
      -Wl,--wrap=_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
  endforeach()
endif()
