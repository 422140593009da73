# orrery_library(FOLDER DEPS a b c): the *.cc files of one folder (not of its subfolders) as a static
# library, orrery::a_b for the folder a/b. A folder without sources yet is an interface library, so that headers may
# come before code.
function(orrery_library folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  string(REPLACE "/" "_" name "orrery_${folder}")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  if(folder STREQUAL "kernels")  # one folder an operator
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*/*.cc)
    list(FILTER sources EXCLUDE REGEX "_(bench|cuda)\\.cc$")
  endif()
  list(FILTER sources EXCLUDE REGEX "orchestrator/main\\.cc$")
  if(sources)
    add_library(${name} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(${name} PRIVATE ${ORRERY_WARNINGS})
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${name} ${scope} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} ${scope} ${ARG_DEPS})
  string(REPLACE "orrery_" "orrery::" alias ${name})
  add_library(${alias} ALIAS ${name})
endfunction()

# orrery_test(FOLDER DEPS ...): every *_test.cc of tests/FOLDER as one executable, each case known
# to ctest and labelled with its folder. All files are globbed, so that no test on disk goes
# unregistered. SOURCES: cases of another folder, run here once more under names with a PREFIX.
function(orrery_test folder)
  cmake_parse_arguments(ARG "" "TIMEOUT;PREFIX" "DEPS;LABELS;SOURCES" ${ARGN})
  string(REPLACE "/" "_" name "${folder}_test")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*_test.cc)
  list(APPEND sources ${ARG_SOURCES})
  if(NOT sources)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${sources})
  # GCC 12 warns of "x" + std::to_string(n) (its bug 105651), which tests write a lot.
  target_compile_options(${name} PRIVATE ${ORRERY_WARNINGS} -Wno-restrict)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE ORRERY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" TEST_LIST ${name}_cases PROPERTIES TIMEOUT ${ARG_TIMEOUT}
                       DISCOVERY_TIMEOUT 60)
  # Labels in a file of their own: gtest_discover_tests takes no list as a property.
  set(labels ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${labels} "if(${name}_cases)
  set_tests_properties(\${${name}_cases} PROPERTIES LABELS \"${folder};${ARG_LABELS}\")
endif()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
endfunction()

# The orrery binary: orchestrator/main.cc is the composition root and alone links every folder.
function(orrery_binary)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/orchestrator/main.cc
       ${CMAKE_SOURCE_DIR}/orchestrator/commands/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(orrery ${sources})
  target_compile_options(orrery PRIVATE ${ORRERY_WARNINGS})
  target_link_libraries(orrery PRIVATE orrery::trainer_cpu orrery::rollout orrery::rollout_episodes orrery::rewards
    orrery::sandbox orrery::sandbox_image orrery::orchestrator_loop orrery::orchestrator_run orrery::orchestrator_data
    orrery::orchestrator_hub orrery::orchestrator_doctor orrery::orchestrator_plan cli11)
  if(ORRERY_HAVE_CUDA)
    target_link_libraries(orrery PRIVATE orrery::rollout_cuda orrery::trainer_cuda)
    target_compile_definitions(orrery PRIVATE ORRERY_HAVE_CUDA=1)
  endif()
endfunction()
