# The completion scripts become string literals of the binary, which prints them.
set(scripts ${PROJECT_SOURCE_DIR}/vitrum/cli/completion)
foreach(shell bash zsh fish)
  string(TOUPPER ${shell} name)
  file(READ ${scripts}/vitrum.${shell} VITRUM_COMPLETION_${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${scripts}/vitrum.${shell})
endforeach()
configure_file(${scripts}/scripts.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/cli/completion_scripts.cpp @ONLY)
target_sources(vitrum_command PRIVATE ${PROJECT_BINARY_DIR}/generated/vitrum/cli/completion_scripts.cpp)
