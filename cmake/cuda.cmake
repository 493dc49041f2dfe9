# The kernels of kv/cuda: compiled to one file for several GPUs, which goes into the library as bytes.
# The driver takes it from there at run time, so nothing of CUDA is linked, and all else builds and
# passes its tests without nvcc.
#
#   CACHALOT_CUDA   AUTO: where nvcc is found and works; ON: an error if it does not; OFF
#
# CMake's own CUDA language is not enabled: it would ask for a runtime to link with, and hand the flags
# of the C++ compiler to nvcc.
set(CACHALOT_CUDA AUTO CACHE STRING "Compile the GPU's kernels with nvcc: ON, OFF, or AUTO where it works")
if(NOT CACHALOT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "CACHALOT_CUDA is '${CACHALOT_CUDA}'; expected AUTO, ON or OFF")
endif()

# What is compiled for: Ampere, Hopper and Blackwell of data centres, and PTX for what comes later.
set(CACHALOT_CUDA_LANGUAGE -std=c++20 -O3 -ccbin ${CMAKE_CXX_COMPILER})
set(CACHALOT_CUDA_FLAGS -fatbin ${CACHALOT_CUDA_LANGUAGE} -Xfatbin=-compress-all
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
  -gencode "arch=compute_100,code=[sm_100,compute_100]")

# Whether nvcc compiles an empty kernel with these flags. Sets CACHALOT_HAS_NVCC and, if not,
# CACHALOT_NVCC_PROBLEM.
function(cachalot_try_nvcc)
  set(folder ${PROJECT_BINARY_DIR}/CMakeFiles/nvcc)
  file(WRITE ${folder}/empty.cu "extern \"C\" __global__ void empty() {}\n")
  execute_process(
    COMMAND ${CACHALOT_NVCC} ${CACHALOT_CUDA_FLAGS} ${folder}/empty.cu -o ${folder}/empty.fatbin
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0)
    set(CACHALOT_HAS_NVCC ON CACHE INTERNAL "nvcc compiles for the GPUs we want")
  else()
    string(REGEX MATCH "[^\n]+" line "${output}")
    set(CACHALOT_NVCC_PROBLEM "${CACHALOT_NVCC} fails (CUDA 12.8 or later is needed): ${line}" PARENT_SCOPE)
  endif()
endfunction()

if(CACHALOT_CUDA STREQUAL "OFF")
  unset(CACHALOT_HAS_NVCC CACHE)
  message(STATUS "GPU kernels are left out (CACHALOT_CUDA is OFF)")
else()
  find_program(CACHALOT_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT CACHALOT_NVCC)
    set(CACHALOT_NVCC_PROBLEM "nvcc not found")
  elseif(NOT CACHALOT_HAS_NVCC)
    cachalot_try_nvcc()
  endif()
  if(CACHALOT_HAS_NVCC)
    message(STATUS "GPU kernels by ${CACHALOT_NVCC}")
  elseif(CACHALOT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CACHALOT_CUDA is ON, but ${CACHALOT_NVCC_PROBLEM}")
  else()
    message(STATUS "${CACHALOT_NVCC_PROBLEM}: GPU kernels are left out, all else is as ever")
  endif()
endif()

# Where NVIDIA's header is, to compare the driver's table with; empty if nowhere.
set(CACHALOT_CUDA_HEADERS)
if(CACHALOT_HAS_NVCC)
  get_filename_component(nvcc_path ${CACHALOT_NVCC} REALPATH)
  get_filename_component(nvcc_folder ${nvcc_path} DIRECTORY)
  find_path(CACHALOT_CUDA_HEADER_FOLDER cudaTypedefs.h
    HINTS ${nvcc_folder}/../include ${nvcc_folder}/../targets/x86_64-linux/include)
  if(CACHALOT_CUDA_HEADER_FOLDER)
    set(CACHALOT_CUDA_HEADERS ${CACHALOT_CUDA_HEADER_FOLDER})
  endif()
endif()

# cachalot_kernel_image(VARIABLE kernels.cu DECLARED header.h AS namespace::function HEADERS a.h ...)
#
# Sets VARIABLE to a C++ file that defines std::span<const unsigned char> function(), as the header
# declares it: the compiled kernels, or none. HEADERS, from src: what kernels.cu includes.
function(cachalot_kernel_image variable source)
  cmake_parse_arguments(K "" "DECLARED;AS" "HEADERS" ${ARGN})
  set(embed ${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake)
  get_filename_component(name ${source} NAME_WE)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(embedded ${CMAKE_CURRENT_BINARY_DIR}/${name}_image.cpp)
  if(CACHALOT_HAS_NVCC)
    list(TRANSFORM K_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/src/)
    add_custom_command(OUTPUT ${image}
      COMMAND ${CACHALOT_NVCC} ${CACHALOT_CUDA_FLAGS} -I ${PROJECT_SOURCE_DIR}/src
        ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${image}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} ${K_HEADERS}
      COMMENT "Compiling GPU kernels ${source}" VERBATIM)
  else()
    set(image)
  endif()
  add_custom_command(OUTPUT ${embedded}
    COMMAND ${CMAKE_COMMAND} -DIMAGE=${image} -DTO=${embedded} -DDECLARED=${K_DECLARED} -DAS=${K_AS}
      -P ${embed}
    DEPENDS ${image} ${embed} VERBATIM)
  set(${variable} ${embedded} PARENT_SCOPE)
endfunction()

# cachalot_ptx(VARIABLE source.cu ARCHITECTURE)
#
# Sets VARIABLE to a file with the PTX that nvcc makes of source.cu on the way to the image: the same source,
# language and optimisation. For tests; only where CACHALOT_HAS_NVCC.
function(cachalot_ptx variable source architecture)
  get_filename_component(name ${source} NAME_WE)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/${name}_${architecture}.ptx)
  add_custom_command(OUTPUT ${ptx}
    COMMAND ${CACHALOT_NVCC} -ptx ${CACHALOT_CUDA_LANGUAGE} -arch compute_${architecture}
      -I ${PROJECT_SOURCE_DIR}/src -MD -MF ${ptx}.d -MT ${ptx} ${source} -o ${ptx}
    DEPENDS ${source} DEPFILE ${ptx}.d
    COMMENT "Compiling ${name}.cu to PTX for compute_${architecture}" VERBATIM)
  set(${variable} ${ptx} PARENT_SCOPE)
endfunction()
