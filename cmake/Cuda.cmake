# The CUDA backend: a library of its own that vitrum opens at run time, so that one build serves machines with and
# without a card. VITRUM_CUDA: AUTO builds it where nvcc and a card are, ON wherever nvcc is, OFF never.
set(VITRUM_HAS_CUDA OFF)
if(VITRUM_CUDA STREQUAL "OFF")
  return()
endif()
find_program(VITRUM_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT VITRUM_NVCC)
  if(VITRUM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "VITRUM_CUDA=ON needs nvcc of CUDA 12.4 or later; set CUDA_HOME where it is elsewhere")
  endif()
  return()
endif()
if(VITRUM_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidia0)
  message(STATUS "CUDA backend: left out, there is no card (make CUDA=1 builds it all the same)")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${VITRUM_NVCC})
# The card at hand; Hopper's own instructions (90a) need its name spelt out.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader --id=0
  OUTPUT_VARIABLE capability OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(usual 90a-real)
if(capability MATCHES "^[0-9]+[.][0-9]+$" AND NOT capability STREQUAL "9.0")
  string(REPLACE "." "" usual "${capability}-real")
endif()
set(VITRUM_CUDA_ARCHITECTURES ${usual} CACHE STRING "Cards to build for, as CMAKE_CUDA_ARCHITECTURES has them")
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${VITRUM_CUDA_ARCHITECTURES})
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)
set(VITRUM_HAS_CUDA ON)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/vitrum/cuda/*/*.cu ${PROJECT_SOURCE_DIR}/vitrum/cuda/*/*.cpp)
add_library(vitrum_cuda MODULE ${cuda_sources} ${PROJECT_SOURCE_DIR}/vitrum/graph/op.cpp
  ${PROJECT_SOURCE_DIR}/vitrum/runtime/communicator.cpp)
target_compile_features(vitrum_cuda PRIVATE cxx_std_20)
target_include_directories(vitrum_cuda PRIVATE ${PROJECT_SOURCE_DIR})
string(REPLACE ";" "," architectures "${CMAKE_CUDA_ARCHITECTURES}")
set_source_files_properties(${PROJECT_SOURCE_DIR}/vitrum/cuda/host/backend.cpp ${PROJECT_SOURCE_DIR}/vitrum/cuda/host/copy.cpp PROPERTIES
  COMPILE_DEFINITIONS "VITRUM_CUDA_ARCHITECTURES=\"${architectures}\";VITRUM_ABI_VERSION=${VITRUM_ABI_VERSION}")
# CMake 3.25 does not know that nvcc 13 has C++20: the flag is given by hand.
target_compile_options(vitrum_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>)
set_target_properties(vitrum_cuda PROPERTIES
  CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
# cuBLASLt is opened at run time, after a card was found: only its header is needed here.
target_include_directories(vitrum_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(vitrum_cuda PRIVATE fmt::fmt ${CMAKE_DL_LIBS})
target_link_options(vitrum_cuda PRIVATE $<$<CONFIG:Release>:-s> -Wl,-z,relro,-z,now,--exclude-libs,ALL)
install(TARGETS vitrum_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/vitrum)
