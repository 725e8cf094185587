# vitrum_flags(target): the warnings and hardening that every target of ours is built with. Nothing here selects
# an instruction set: the baseline is plain x86-64, and cmake/Simd.cmake has the exceptions.
include(CheckPIESupported)
check_pie_supported()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_EXTENSIONS OFF)

if(VITRUM_SANITIZE)
  add_compile_options(-fsanitize=${VITRUM_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${VITRUM_SANITIZE})
endif()

function(vitrum_flags target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wconversion -Wno-sign-conversion -Walloca -Werror=vla
    -Wno-missing-field-initializers  # designated initialisers leave defaults out on purpose
    $<$<BOOL:${VITRUM_WERROR}>:-Werror>
    # Ubuntu's compiler predefines another level of fortification: undefine it first.
    $<$<CONFIG:Release>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong>)
  target_link_options(${target} PRIVATE $<$<CONFIG:Release>:-Wl,-z,relro,-z,now>)
endfunction()
