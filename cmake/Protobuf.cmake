# vitrum/train/event.proto becomes "vitrum/train/event.pb.h" below the build directory.
set(proto vitrum/train/event.proto)
if(EXISTS ${PROJECT_SOURCE_DIR}/${proto})
  set(generated ${PROJECT_BINARY_DIR}/generated)
  set(event ${generated}/vitrum/train/event.pb)
  file(MAKE_DIRECTORY ${generated})
  add_custom_command(
    OUTPUT ${event}.cc ${event}.h
    COMMAND protobuf::protoc --proto_path=${PROJECT_SOURCE_DIR} --cpp_out=${generated}
            ${PROJECT_SOURCE_DIR}/${proto}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto}
    VERBATIM)
  set_source_files_properties(${event}.cc PROPERTIES COMPILE_OPTIONS -w)
  target_sources(vitrum PRIVATE ${event}.cc ${event}.h)
  target_include_directories(vitrum SYSTEM PUBLIC $<BUILD_INTERFACE:${generated}>)

  file(STRINGS ${proto} lite REGEX "optimize_for *= *LITE_RUNTIME")
  if(lite)
    set(VITRUM_PROTOBUF protobuf-lite)
  else()
    set(VITRUM_PROTOBUF protobuf)
  endif()
  target_link_libraries(vitrum PRIVATE protobuf::lib${VITRUM_PROTOBUF})
endif()
