# vitrum/text/unicode.txt becomes a string literal: what tokenizers ask of Unicode.
set(table ${PROJECT_SOURCE_DIR}/vitrum/text/unicode)
file(READ ${table}.txt VITRUM_UNICODE)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table}.txt)
configure_file(${table}_table.cpp.in ${PROJECT_BINARY_DIR}/generated/vitrum/text/unicode_table.cpp @ONLY)
target_sources(vitrum PRIVATE ${PROJECT_BINARY_DIR}/generated/vitrum/text/unicode_table.cpp)
