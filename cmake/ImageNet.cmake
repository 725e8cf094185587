# vitrum/weights/imagenet.txt becomes a string literal, so that a bare weight file has names for its classes.
set(names ${PROJECT_SOURCE_DIR}/vitrum/weights/imagenet)
file(READ ${names}.txt VITRUM_IMAGENET)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${names}.txt)
configure_file(${names}_table.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/weights/imagenet_table.cpp @ONLY)
target_sources(vitrum PRIVATE ${PROJECT_BINARY_DIR}/generated/vitrum/weights/imagenet_table.cpp)
