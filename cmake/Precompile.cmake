# vitrum_precompile(target headers...): standard headers and fmt, most of what a small file makes the compiler read, and
# `headers` are parsed once a target.
# Not where a compiler cache does that work (VITRUM_PCH): it would have to trust what is in them.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(usual OFF)
else()
  set(usual ON)
endif()
option(VITRUM_PCH "Precompile standard headers" ${usual})

function(vitrum_precompile target)
  if(VITRUM_PCH)
    target_precompile_headers(${target} PRIVATE
      <algorithm> <array> <charconv> <chrono> <cmath> <cstring> <deque> <filesystem> <functional> <limits> <map> <memory>
      <numeric> <optional> <set> <span> <string> <string_view> <utility> <variant> <vector> <fmt/format.h> ${ARGN})
  endif()
endfunction()
