# Writes a C++ file that holds a file's bytes: cmake -DIMAGE=kernels.fatbin -DTO=kernel_image.cpp -P this
# Without an image it holds none.
set(bytes "0")
set(count 0)
if(IMAGE)
  file(READ ${IMAGE} bytes HEX)
  file(SIZE ${IMAGE} count)
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
endif()
file(WRITE ${TO} "// Made by cmake/embed_kernels.cmake.
#include \"kv/cuda/kernel_image.h\"

namespace cachalot::kv {

alignas(64) static const unsigned char kImage[] = {${bytes}};

std::span<const unsigned char> kernel_image() {
  return std::span(kImage).first(${count});
}

}  // namespace cachalot::kv
")
