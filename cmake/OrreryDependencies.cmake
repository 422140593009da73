# Everything the project links, by the names the targets use. Debian packages and the wheels under
# .deps/ are put there by ./orrery (setup/); this file only finds them and says what is missing.
set(ORRERY_DEPS ${CMAKE_SOURCE_DIR}/.deps CACHE PATH "Folder of the unpacked PyPI wheels")

set(ORRERY_WARNINGS -Wall -Wextra -Werror -Wno-missing-field-initializers)
# GCC 12 sees overlaps and overflows that are not there once a sanitizer's checks stand in between.
if(CMAKE_BUILD_TYPE STREQUAL "Sanitize")
  list(REMOVE_ITEM ORRERY_WARNINGS -Werror)
endif()

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ZLIB REQUIRED)
find_package(CURL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(ARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
foreach(pair ZSTD:zstd PCRE2:pcre2 UTF8PROC:utf8proc HWY:hwy ARCHIVE:archive SECCOMP:seccomp
             XXHASH:xxhash)
  string(REPLACE ":" ";" parts ${pair})
  list(GET parts 0 module)
  list(GET parts 1 name)
  add_library(${name} INTERFACE)
  target_link_libraries(${name} INTERFACE PkgConfig::${module})
endforeach()
add_library(RapidJSON INTERFACE)  # header only, no target of its own in Debian
target_compile_definitions(RapidJSON INTERFACE RAPIDJSON_HAS_STDSTRING=1)
add_library(cli11 INTERFACE)  # header only

# Arrow's C++ library, for Parquet, from the pyarrow wheel.
add_library(arrow INTERFACE)
if(EXISTS ${ORRERY_DEPS}/arrow/include/parquet/arrow/reader.h)
  target_include_directories(arrow SYSTEM INTERFACE ${ORRERY_DEPS}/arrow/include)
  file(GLOB arrow_libraries ${ORRERY_DEPS}/arrow/lib/libarrow.so.* ${ORRERY_DEPS}/arrow/lib/libparquet.so.*)
  target_link_libraries(arrow INTERFACE ${arrow_libraries})
  target_compile_definitions(arrow INTERFACE ORRERY_HAVE_PARQUET=1)
endif()

# LibTorch from the torch wheel, CPU part. find_package(Torch) of a CUDA wheel asks for a CUDA
# toolkit, so the two libraries are named here.
if(ORRERY_TORCH)
  if(NOT EXISTS ${ORRERY_DEPS}/torch/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch is not in ${ORRERY_DEPS}/torch: run ./orrery setup")
  endif()
  add_library(torch INTERFACE)
  target_include_directories(torch SYSTEM INTERFACE ${ORRERY_DEPS}/torch/include)
  target_link_libraries(torch INTERFACE ${ORRERY_DEPS}/torch/lib/libtorch_cpu.so
                        ${ORRERY_DEPS}/torch/lib/libc10.so Threads::Threads)
  # The CUDA build of libtorch_cpu wants libcudart and libcupti even where there is no GPU. They are
  # its needs, not ours: of the two kinds of rpath only the old one is searched for those as well.
  target_link_options(torch INTERFACE -Wl,--disable-new-dtags
                      -Wl,-rpath-link,${ORRERY_DEPS}/cuda/lib)
  list(APPEND CMAKE_BUILD_RPATH ${ORRERY_DEPS}/cuda/lib)
endif()

if(ORRERY_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
