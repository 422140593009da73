# Cross-compiling the torch-free targets for arm64 on an x86-64 Debian or Ubuntu: Debian's cross compiler,
# the libraries that setup/arm64.sh unpacked, and qemu-user to run the tests.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

get_filename_component(ORRERY_ARM64 ${CMAKE_CURRENT_LIST_DIR}/../.deps/arm64 ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${ORRERY_ARM64})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR}
    ${ORRERY_ARM64}/usr/lib/aarch64-linux-gnu/pkgconfig:${ORRERY_ARM64}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ORRERY_ARM64})

set(libraries ${ORRERY_ARM64}/usr/lib/aarch64-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${ORRERY_ARM64}/usr/include -isystem ${ORRERY_ARM64}/usr/include/aarch64-linux-gnu")
# At run time the tests find the unpacked libraries by rpath, and what those need by LD_LIBRARY_PATH.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${libraries} -Wl,-rpath,${libraries} -Wl,-rpath-link,${libraries}:${ORRERY_ARM64}/lib/aarch64-linux-gnu")

# "max" has SVE2: the widest code path that Highway chooses.
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=${libraries}:${ORRERY_ARM64}/lib/aarch64-linux-gnu)
