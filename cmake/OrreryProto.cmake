# Protocol buffers and gRPC of the distribution: what a .proto file becomes lies in the build folder.
# The libraries by name: what pkg-config lists besides is what a static gRPC needs, and not all of it comes
# with the packages.
pkg_check_modules(GRPC REQUIRED grpc++)
pkg_check_modules(PROTOBUF REQUIRED protobuf)
find_program(PROTOC protoc REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# orrery_proto(NAME FILE): FILE.proto, a path from the root of the tree, as the library NAME.
function(orrery_proto name file)
  set(out ${CMAKE_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${out})
  set(made ${out}/${file}.pb.cc ${out}/${file}.grpc.pb.cc)
  add_custom_command(
    OUTPUT ${made} ${out}/${file}.pb.h ${out}/${file}.grpc.pb.h
    COMMAND ${PROTOC} --proto_path=${CMAKE_SOURCE_DIR} --cpp_out=${out} --grpc_out=${out}
            --plugin=protoc-gen-grpc=${GRPC_CPP_PLUGIN} ${file}.proto
    DEPENDS ${CMAKE_SOURCE_DIR}/${file}.proto
    VERBATIM)
  add_library(${name} STATIC ${made})
  target_include_directories(${name} SYSTEM PUBLIC ${out})
  target_link_libraries(${name} PUBLIC grpc++ grpc gpr protobuf absl::synchronization Threads::Threads)
endfunction()
