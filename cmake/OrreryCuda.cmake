# CUDA is optional: with a toolkit the GPU kernels are built, without one a line says so.
option(ORRERY_CUDA "Build the GPU kernels where a CUDA toolkit is found" ON)
set(ORRERY_CUDA_ARCHITECTURES 90a CACHE STRING "GPU architectures, as CMAKE_CUDA_ARCHITECTURES")

set(ORRERY_HAVE_CUDA OFF)
if(ORRERY_CUDA AND NOT CMAKE_CROSSCOMPILING)
  find_program(ORRERY_NVCC nvcc PATHS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
  if(ORRERY_NVCC)
    set(CMAKE_CUDA_COMPILER ${ORRERY_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${ORRERY_CUDA_ARCHITECTURES})
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows nvcc's up to 17
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(ORRERY_HAVE_CUDA ON)
  else()
    message(STATUS "No CUDA toolkit (nvcc): built without GPU kernels")
  endif()
endif()

# kernels/*/*.cu, and the host code that needs the CUDA runtime (*_cuda.cc; nvcc does not take fmt's
# compile-time checks), as orrery::kernels_cuda, where there is a toolkit.
function(orrery_cuda_kernels)
  if(NOT ORRERY_HAVE_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*/*.cu
       ${CMAKE_SOURCE_DIR}/kernels/*/*_cuda.cc)
  list(FILTER sources EXCLUDE REGEX "_bench\\.cu$")
  add_library(orrery_kernels_cuda STATIC ${sources})
  add_library(orrery::kernels_cuda ALIAS orrery_kernels_cuda)
  target_include_directories(orrery_kernels_cuda PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(orrery_kernels_cuda PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>"
    "$<$<COMPILE_LANGUAGE:CXX>:${ORRERY_WARNINGS}>")
  target_link_libraries(orrery_kernels_cuda PUBLIC orrery::kernels CUDA::cudart_static)
  target_include_directories(orrery_kernels_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endfunction()
