# `cmake --install` needs what it installs: `make demo` builds the program only. Runs before the first file is installed,
# so this comes before all targets; the Python package's component brings what it needs itself.
foreach(target cachalot cachalot-memory cachalot-simulate cachalot-bench cachalot_shared cachalot_torch_plugin cachalot_python_storage)
  string(APPEND files "$<$<TARGET_EXISTS:${target}>:$<TARGET_FILE:${target}>>;")
endforeach()
foreach(program cachalot cachalot-memory cachalot-simulate cachalot-bench)
  string(APPEND files "$<$<TARGET_EXISTS:${program}>:${PROJECT_BINARY_DIR}/manual/${program}.written>;")
endforeach()
install(CODE "
  set(files \"${files}\")
  foreach(file IN LISTS files)
    if(file AND NOT EXISTS \"\${file}\")  # empty: a target that this build does not have
      message(FATAL_ERROR \"install: \${file} is not built, expected all of it: make build, or cmake --build ${PROJECT_BINARY_DIR}\")
    endif()
  endforeach()")
unset(files)
