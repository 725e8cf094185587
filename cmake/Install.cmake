# The installed library serves find_package(vitrum) and pkg-config; both stay right when the prefix is moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/vitrum)

install(TARGETS vitrum vitrum_c vitrum_c_static EXPORT vitrum-targets FILE_SET HEADERS)
install(EXPORT vitrum-targets NAMESPACE vitrum:: DESTINATION ${package_dir})
if(TARGET vitrum-cli)
  set_target_properties(vitrum-cli PROPERTIES INSTALL_RPATH $ORIGIN/${VITRUM_BIN_TO_LIB})
  install(TARGETS vitrum-cli)

  # Manual pages and completion are what the binary prints of itself.
  if(NOT CMAKE_CROSSCOMPILING)
    set(share ${PROJECT_BINARY_DIR}/share)
    add_custom_command(TARGET vitrum-cli POST_BUILD VERBATIM
      COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/completion
      COMMAND vitrum-cli man --force --output ${share}/man1
      COMMAND vitrum-cli completion bash > ${share}/completion/vitrum
      COMMAND vitrum-cli completion zsh > ${share}/completion/_vitrum
      COMMAND vitrum-cli completion fish > ${share}/completion/vitrum.fish)
    install(DIRECTORY ${share}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
    install(FILES ${share}/completion/vitrum DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${share}/completion/_vitrum DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${share}/completion/vitrum.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
  install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/vitrum)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/vitrum-config.cmake.in vitrum-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(vitrum-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/vitrum-config.cmake
  ${PROJECT_BINARY_DIR}/vitrum-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/vitrum.pc.in vitrum.pc @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/cmake/vitrum_c.pc.in vitrum_c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/vitrum.pc ${PROJECT_BINARY_DIR}/vitrum_c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
