# What the binary and the libraries that it opens (CUDA, MPI), built apart, must agree about: a hash of the headers that say what
# passes between them.
# A library from before a change of these is refused.
set(abi_headers core/buffer.h core/dtype.h core/shape.h core/tensor.h graph/op.h runtime/backend.h
  runtime/communicator.h runtime/link.h dist/transport.h)
list(TRANSFORM abi_headers PREPEND ${PROJECT_SOURCE_DIR}/vitrum/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${abi_headers})
set(abi "")
foreach(header ${abi_headers})
  file(SHA256 ${header} hash)
  string(APPEND abi ${hash})
endforeach()
string(SHA256 abi "${abi}")
string(SUBSTRING ${abi} 0 7 abi)  # fits an int
set(VITRUM_ABI_VERSION 0x${abi})
