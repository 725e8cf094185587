# vitrum/train/event.proto becomes "vitrum/train/event.pb.h" below the build directory; all of them need protobuf's
# lite runtime only.
set(VITRUM_PROTOBUF protobuf-lite)
set(generated ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${generated})
foreach(proto vitrum/train/event vitrum/export/onnx)
  set(source ${PROJECT_SOURCE_DIR}/${proto}.proto)
  add_custom_command(
    OUTPUT ${generated}/${proto}.pb.cc ${generated}/${proto}.pb.h
    COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${generated} ${source}
    DEPENDS ${source}
    VERBATIM)
  set_source_files_properties(${generated}/${proto}.pb.cc PROPERTIES COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON)
  target_sources(vitrum PRIVATE ${generated}/${proto}.pb.cc ${generated}/${proto}.pb.h)
endforeach()
target_include_directories(vitrum SYSTEM PUBLIC $<BUILD_INTERFACE:${generated}>)
target_link_libraries(vitrum PRIVATE protobuf::lib${VITRUM_PROTOBUF})
