# cmake --install BUILD --prefix DIR: a folder that can be moved and carried to another machine of the
# same architecture with as new a glibc and libstdc++: bin/orrery, lib/ with every other library it
# loads, the example experiments.
if(TARGET orrery)
  set_target_properties(orrery PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS orrery RUNTIME DESTINATION bin)
  install(CODE "set(orrery_folders \"${ORRERY_DEPS}/torch/lib;${ORRERY_DEPS}/cuda/lib;${ORRERY_DEPS}/arrow/lib\")
    set(orrery_binary \"$<TARGET_FILE:orrery>\")")
  install(CODE [[
    file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${orrery_binary} DIRECTORIES ${orrery_folders}
         RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
         CONFLICTING_DEPENDENCIES_PREFIX conflict
         PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|util|pthread|resolv|stdc\\+\\+|gcc_s)\\.so")
    if(missing)
      message(FATAL_ERROR "libraries that orrery loads and that are not found: ${missing}")
    endif()
    foreach(name IN LISTS conflict_FILENAMES)
      list(GET conflict_${name} 0 first)  # the folders of .deps come first
      list(APPEND libraries ${first})
    endforeach()
    file(INSTALL ${libraries} DESTINATION "${CMAKE_INSTALL_PREFIX}/lib" FOLLOW_SYMLINK_CHAIN)
  ]])
  install(DIRECTORY examples DESTINATION share/orrery)
endif()
