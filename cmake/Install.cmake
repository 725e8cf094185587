# The installed library serves find_package(vitrum) and pkg-config; both stay right when the prefix is moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/vitrum)

install(TARGETS vitrum vitrum_c EXPORT vitrum-targets FILE_SET HEADERS)
install(EXPORT vitrum-targets NAMESPACE vitrum:: DESTINATION ${package_dir})
if(TARGET vitrum-cli)
  file(RELATIVE_PATH bin_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(vitrum-cli PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  install(TARGETS vitrum-cli)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/vitrum-config.cmake.in vitrum-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(vitrum-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/vitrum-config.cmake
  ${PROJECT_BINARY_DIR}/vitrum-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/vitrum.pc.in vitrum.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/vitrum.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
