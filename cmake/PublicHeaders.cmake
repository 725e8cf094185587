# vitrum_public_headers(result): what users of the installed library may include (docs/api.md), and behind it whatever
# those headers include themselves. Other headers are ours alone and may change with any version.
set(VITRUM_PUBLIC_HEADERS
  vitrum/core/error.h
  vitrum/data/dataset.h
  vitrum/infer/predict_all.h
  vitrum/infer/predictor.h
  vitrum/models/registry.h
  vitrum/weights/convert.h
  vitrum/weights/model_dir.h)

function(vitrum_public_headers result)
  set(found "")
  set(todo ${VITRUM_PUBLIC_HEADERS})
  while(todo)
    list(POP_FRONT todo header)
    if(header IN_LIST found)
      continue()
    endif()
    list(APPEND found ${header})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} lines REGEX "^#include \"vitrum/")
    list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND todo ${lines})
  endwhile()
  list(TRANSFORM found PREPEND ${PROJECT_SOURCE_DIR}/)
  set(${result} ${found} PARENT_SCOPE)
endfunction()
