# The modules and what each may include: the one place where that is written. tools/tidy reads this
# table too, and a test fails when an #include breaks it. Below, a module comes after all it uses.
set(CACHALOT_MODULES
  "base:"
  "os: base"
  "geometry: base"
  "trace: base os"
  "memory: base os"
  "kv: base os memory geometry"
  "vmm: base os"
  "index: base"
  "rpc: base os memory"
  "pool: base os memory index rpc"
  "engine: base os memory geometry index kv pool"
  "replay: base os memory vmm trace geometry index pool"
)
# The programs and tests that stand on the modules may use all of them; include/cachalot is open to all.

# cachalot_module(NAME SOURCES a.cpp ... [LIBRARIES lib ...] [TESTS a_test.cpp ...])
#
# Declares src/NAME as a static library with the dependencies of the table above; LIBRARIES are
# outside packages, kept out of the module's headers. TESTS become one GoogleTest program.
function(cachalot_module name)
  cmake_parse_arguments(M "" "" "SOURCES;LIBRARIES;TESTS" ${ARGN})
  set(dependencies "undeclared")
  foreach(row IN LISTS CACHALOT_MODULES)
    if(row MATCHES "^${name}:(.*)$")
      string(STRIP "${CMAKE_MATCH_1}" dependencies)
      string(REPLACE " " ";" dependencies "${dependencies}")
    endif()
  endforeach()
  if(dependencies STREQUAL "undeclared")
    message(FATAL_ERROR "module ${name} is not in cmake/modules.cmake")
  endif()
  add_library(cachalot_${name} STATIC ${M_SOURCES})
  target_include_directories(cachalot_${name}
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(cachalot_${name} PUBLIC cachalot_options PRIVATE ${M_LIBRARIES})
  foreach(dependency IN LISTS dependencies)
    target_link_libraries(cachalot_${name} PUBLIC cachalot_${dependency})
  endforeach()
  if(M_TESTS AND CACHALOT_BUILD_TESTS)
    cachalot_test(${name}_test SOURCES ${M_TESTS} LIBRARIES cachalot_${name} ${M_LIBRARIES})
  endif()
endfunction()

# cachalot_test(NAME SOURCES ... [LIBRARIES ...] [LABELS ...] [TIMEOUT seconds]): one GoogleTest program, one ctest entry a test case.
function(cachalot_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} cachalot_options
    rapidcheck rapidcheck_gtest GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE CACHALOT_TEST_ASSETS="${PROJECT_SOURCE_DIR}/tests/assets")
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}:" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
