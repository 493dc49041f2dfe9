# How a wheel is compiled: against the C library in the folder that tools/setup-wheel makes, with all other libraries, also
# the C++ library, linked statically.
set(CACHALOT_WHEEL_ROOT $ENV{CACHALOT_WHEEL_ROOT})
if(NOT EXISTS ${CACHALOT_WHEEL_ROOT}/usr/include)
  message(FATAL_ERROR "CACHALOT_WHEEL_ROOT is '${CACHALOT_WHEEL_ROOT}', expected the folder that tools/setup-wheel made")
endif()
set(CMAKE_SYSROOT ${CACHALOT_WHEEL_ROOT})
foreach(kind LIBRARY INCLUDE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} ${CACHALOT_WHEEL_ROOT}/usr/lib/x86_64-linux-gnu/pkgconfig)
set(OPENSSL_USE_STATIC_LIBS ON)

foreach(language C CXX)
  # A section for each function, so that the linker leaves out what nothing calls.
  set(CMAKE_${language}_FLAGS_INIT "-include ${CMAKE_CURRENT_LIST_DIR}/old_glibc.h -ffunction-sections -fdata-sections")
endforeach()
# GCC looks for libraries beside itself before it looks into the sysroot; -B comes before both.
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${kind}_LINKER_FLAGS_INIT "-B${CACHALOT_WHEEL_ROOT}/usr/lib/x86_64-linux-gnu -static-libstdc++ -Wl,--exclude-libs,libstdc++.a -Wl,--wrap=pthread_mutex_clocklock -Wl,--gc-sections")
endforeach()
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT " -Wl,-z,defs")  # what is missing fails here, not at its first use
