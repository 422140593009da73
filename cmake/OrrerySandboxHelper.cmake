# The static helper of the sandboxes (launcher and init): an executable of its own, which
# sandbox/host/helper_program.cc takes into the library as bytes. It runs before anything of a
# sandbox is set up, so it has no sanitizer, no exceptions and no library but the C and C++ ones.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sandbox/protocol/*.cc
     ${CMAKE_SOURCE_DIR}/sandbox/launcher/*.cc ${CMAKE_SOURCE_DIR}/sandbox/init/*.cc
     ${CMAKE_SOURCE_DIR}/sandbox/probe/*.cc)
add_executable(orrery_sandbox_helper ${sources})
target_include_directories(orrery_sandbox_helper PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(orrery_sandbox_helper PRIVATE ${ORRERY_WARNINGS} -Os -fno-exceptions -fno-rtti
                       -fno-sanitize=all -ffunction-sections)
target_link_options(orrery_sandbox_helper PRIVATE -static -no-pie -fno-sanitize=all -s -Wl,--gc-sections)
set_target_properties(orrery_sandbox_helper PROPERTIES POSITION_INDEPENDENT_CODE OFF)
set_source_files_properties(${CMAKE_SOURCE_DIR}/sandbox/host/helper_program.cc PROPERTIES
  COMPILE_DEFINITIONS "ORRERY_SANDBOX_HELPER=\"$<TARGET_FILE:orrery_sandbox_helper>\""
  OBJECT_DEPENDS ${CMAKE_BINARY_DIR}/orrery_sandbox_helper)
add_dependencies(orrery_sandbox_host orrery_sandbox_helper)
# GCC 12 sees overlapping copies in assignments of short literals (its bug 105651).
target_compile_options(orrery_sandbox_host PRIVATE -Wno-restrict)
