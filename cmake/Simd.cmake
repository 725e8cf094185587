# Each file of vitrum/cpu/simd is compiled once per instruction set, with VITRUM_ISA naming it; the CPU backend
# chooses at run time. Those objects must define no weak symbol (an inline function, a template instance): the
# linker keeps one copy of a weak symbol, and AVX-512 code could end up in baseline callers.
# tests/checks/check_weak_symbols.sh looks.
file(GLOB simd_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/vitrum/cpu/simd/*.cpp)
set(VITRUM_SIMD_OBJECTS "")
# Instrumented, these files take minutes each at -O3 and seconds at -O1.
set(simd_level $<IF:$<BOOL:${VITRUM_SANITIZE}>,-O1,-O3>)

function(vitrum_simd isa sources)
  if(NOT sources)
    return()
  endif()
  add_library(vitrum_${isa} OBJECT ${sources})
  vitrum_flags(vitrum_${isa})
  target_compile_features(vitrum_${isa} PRIVATE cxx_std_20)
  target_include_directories(vitrum_${isa} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(vitrum_${isa} PRIVATE VITRUM_ISA=${isa})
  target_compile_options(vitrum_${isa} PRIVATE ${simd_level} -fno-math-errno -fno-trapping-math
    -ffp-contract=off ${ARGN}
    # gcc 12 takes the deliberately undefined operand of its own AVX-512 intrinsics for a mistake (GCC bug 105593).
    -Wno-uninitialized -Wno-maybe-uninitialized)
  target_link_libraries(vitrum_${isa} PRIVATE fmt::fmt)
  if(VITRUM_PCH)
    target_precompile_headers(vitrum_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/vitrum/cpu/simd/arrays.h)
  endif()
  target_sources(vitrum PRIVATE $<TARGET_OBJECTS:vitrum_${isa}>)
  set(VITRUM_SIMD_OBJECTS ${VITRUM_SIMD_OBJECTS} $<TARGET_OBJECTS:vitrum_${isa}> PARENT_SCOPE)
endfunction()

set(avx2 -mavx2 -mfma -mf16c -mbmi2)
set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl ${avx2} -mprefer-vector-width=512)
vitrum_simd(avx2 "${simd_sources}" ${avx2})
vitrum_simd(avx512 "${simd_sources}" ${avx512})
# What rounds most of its results to bf16, where an instruction does that: see cpu/simd_avx512_bf16.cpp.
set(rounding_sources ${simd_sources})
list(FILTER rounding_sources INCLUDE REGEX "/(attention|linear|norm)\\.cpp$")
vitrum_simd(avx512_bf16 "${rounding_sources}" ${avx512} -mavx512bf16)

# The units that multiply tiles of bf16, or of bytes: one file each, with the instructions it is about.
function(vitrum_tiles unit)
  set(source ${PROJECT_SOURCE_DIR}/vitrum/cpu/tiles/${unit}.cpp)
  if(NOT EXISTS ${source})
    return()
  endif()
  add_library(vitrum_tiles_${unit} OBJECT ${source})
  vitrum_flags(vitrum_tiles_${unit})
  target_compile_features(vitrum_tiles_${unit} PRIVATE cxx_std_20)
  target_include_directories(vitrum_tiles_${unit} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(vitrum_tiles_${unit} PRIVATE ${simd_level} -ffp-contract=off ${ARGN})
  target_link_libraries(vitrum_tiles_${unit} PRIVATE fmt::fmt)
  target_sources(vitrum PRIVATE $<TARGET_OBJECTS:vitrum_tiles_${unit}>)
  set(VITRUM_SIMD_OBJECTS ${VITRUM_SIMD_OBJECTS} $<TARGET_OBJECTS:vitrum_tiles_${unit}> PARENT_SCOPE)
endfunction()

vitrum_tiles(portable)
vitrum_tiles(avx512_bf16 -mavx512f -mavx512bf16 ${avx2} -mprefer-vector-width=512)
vitrum_tiles(amx -mamx-tile -mamx-bf16)
vitrum_tiles(bytes_portable)
vitrum_tiles(bytes_avx2 ${avx2})
vitrum_tiles(bytes_avx_vnni ${avx2} -mavxvnni)
vitrum_tiles(bytes_avx512_vnni -mavx512f -mavx512vnni ${avx2} -mprefer-vector-width=512)
vitrum_tiles(bytes_amx -mamx-tile -mamx-int8)
