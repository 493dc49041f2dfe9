# Writes a C++ file that holds a file's bytes, or none:
#   cmake -DIMAGE=kernels.fatbin -DTO=image.cpp -DDECLARED=header.h -DAS=namespace::function -P this
set(bytes "0")
set(count 0)
if(IMAGE)
  file(READ ${IMAGE} bytes HEX)
  file(SIZE ${IMAGE} count)
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
endif()
file(WRITE ${TO} "// Made by cmake/embed_kernels.cmake.
#include \"${DECLARED}\"

alignas(64) static const unsigned char kImage[] = {${bytes}};

std::span<const unsigned char> ${AS}() {
  return std::span(kImage).first(${count});
}
")
