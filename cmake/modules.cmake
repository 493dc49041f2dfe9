# The modules and what each may include: the one place where that is written. tools/tidy reads this
# table too, and a test fails when an #include breaks it. Below, a module comes after all it uses.
set(CACHALOT_MODULES
  "base:"
  "os: base"
  "geometry: base"
  "gpu: base os"
  "memory: base os"
  "trace/file: base os"
  "trace/request: base os trace/file"
  "trace/allocation: base os trace/file"
  "block_hash: base"
  "eviction: base"
  "cache_sim: base eviction"
  "storage: base os block_hash eviction"
  "tier/radix: base block_hash eviction"
  "kv: base os memory geometry gpu"
  "device_memory: base os gpu"
  "stitch: base os gpu device_memory"
  "vtensor: base os gpu device_memory"
  "tier/layerwise: base os gpu device_memory vtensor"
  "transfer/strided: base"
  "transfer/pair: base os memory geometry gpu kv transfer/strided"
  "transfer/link: base os memory transfer/strided"
  "transfer/ucx: base os transfer/strided transfer/link"
  "transfer/registry: base os"
  "transfer/engine: base os transfer/strided transfer/link"
  "transfer/segments: base os transfer/strided transfer/link transfer/ucx transfer/engine transfer/registry"
  "transfer/handover: base os memory geometry gpu kv transfer/strided transfer/pair transfer/link transfer/ucx transfer/engine transfer/registry"
  "rpc: base os memory"
  "pool/format: base os memory rpc"
  "pool/expansion: base os memory pool/format"
  "pool/reader: base memory block_hash pool/format pool/expansion"
  "pool/client: base os memory block_hash rpc pool/format pool/expansion pool/reader"
  "pool/keeper: base memory block_hash eviction rpc pool/format pool/expansion pool/reader"
  "pool/hosts: base os memory pool/format pool/reader pool/keeper"
  "pool: base os memory block_hash rpc pool/format pool/expansion pool/reader pool/client pool/keeper pool/hosts"
  "pool/check: base os memory block_hash rpc pool/format pool/expansion pool/reader pool/client pool/keeper pool"
  "node/changes: base memory pool/format pool/reader pool/keeper"
  "node/events: base os memory block_hash pool/format pool/reader pool/keeper pool node/changes"
  "node/archive: base os memory block_hash eviction rpc pool/format pool/reader pool/keeper pool/client pool storage node/changes"
  "node/peers: base os memory block_hash rpc pool/format pool/reader pool/keeper pool storage node/changes node/archive transfer/strided transfer/link transfer/ucx transfer/engine transfer/registry"
  "client: base os memory geometry gpu block_hash kv pool"
  "tier/controller: base os memory geometry gpu block_hash eviction kv pool client tier/radix"
  "node/metrics: base os memory rpc pool"
  "replay/pattern: base"
  "replay/pool: base os memory geometry block_hash eviction trace/request pool client replay/pattern storage node/changes node/archive node/peers transfer/strided transfer/link transfer/ucx transfer/engine transfer/registry"
  "replay/tiers: base os memory geometry gpu block_hash eviction kv pool client tier/radix tier/controller cache_sim trace/request replay/pattern"
  "replay/allocation: base os device_memory stitch vtensor trace/request trace/allocation replay/pattern"
  "sched/timing: base geometry"
  "sched/calibration: base os geometry trace/file sched/timing"
  "trace/run: base os trace/file trace/request"
  "sched/policy: base geometry sched/timing"
  "sim/engine: base geometry sched/timing sched/policy"
  "sim/run: base os geometry trace/file trace/request trace/run sched/timing sched/policy sim/engine"
  "sim/cluster: base geometry eviction cache_sim sched/timing sched/policy"
  "sim/colocated: base geometry eviction cache_sim sched/timing sched/policy sim/engine sim/cluster"
  "testing: base os memory geometry gpu block_hash eviction kv device_memory stitch vtensor rpc pool client tier/radix tier/controller trace/file storage transfer/strided transfer/pair transfer/link transfer/engine transfer/handover transfer/registry"
)
# The programs and tests that stand on the modules may use all of them; include/cachalot is open to all.

# With CACHALOT_UNITY: compiles the sources of a target together. tools/tidy checks that names that are local to a file differ.
function(cachalot_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CACHALOT_UNITY} UNITY_BUILD_BATCH_SIZE 0)
endfunction()

# The same for tests and programs, whose local names need not differ: tools/unity-groups says which sources can be compiled together.
function(cachalot_unity_groups target)
  find_program(CACHALOT_PYTHON python3)
  if(NOT CACHALOT_UNITY OR NOT CACHALOT_PYTHON)
    return()
  endif()
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  execute_process(COMMAND ${CACHALOT_PYTHON} ${PROJECT_SOURCE_DIR}/tools/unity-groups ${sources} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" groups "${groups}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(row IN LISTS groups)
    string(REGEX MATCH "^([0-9]+) (.*)$" row "${row}")
    set(source ${CMAKE_MATCH_2})
    get_source_file_property(other_target ${source} UNITY_GROUP)
    if(other_target)  # the property is one for all targets of this folder
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    else()
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${target}_${CMAKE_MATCH_1})
    endif()
  endforeach()
endfunction()

# cachalot_module(NAME SOURCES a.cpp ... [LIBRARIES lib ...] [TESTS a_test.cpp ...] [TESTING part ...])
#
# Declares src/NAME as a static library with the dependencies of the table above; the library of
# trace/request is cachalot_trace_request. LIBRARIES are outside packages, kept out of the module's
# headers. TESTS become one GoogleTest program, which also links the named parts of src/testing.
function(cachalot_module name)
  cmake_parse_arguments(M "" "" "SOURCES;LIBRARIES;TESTS;TESTING" ${ARGN})
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
  string(REPLACE "/" "_" target ${name})
  add_library(cachalot_${target} STATIC ${M_SOURCES})
  cachalot_unity(cachalot_${target})
  target_include_directories(cachalot_${target}
    PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(cachalot_${target} PUBLIC cachalot_options PRIVATE ${M_LIBRARIES})
  foreach(dependency IN LISTS dependencies)
    string(REPLACE "/" "_" dependency ${dependency})
    target_link_libraries(cachalot_${target} PUBLIC cachalot_${dependency})
  endforeach()
  if(M_TESTS AND CACHALOT_BUILD_TESTS)
    list(TRANSFORM M_TESTING PREPEND cachalot_testing_)
    cachalot_test(${target}_test SOURCES ${M_TESTS} LIBRARIES cachalot_${target} ${M_TESTING} ${M_LIBRARIES})
  endif()
endfunction()

# cachalot_test(NAME SOURCES ... [LIBRARIES ...] [LABELS ...] [TIMEOUT seconds] [SHARDS n]): one GoogleTest program, one
# ctest entry a test case; SHARDS: n entries for all, because the tests of one share a server that starts slowly.
function(cachalot_test name)
  cmake_parse_arguments(T "" "TIMEOUT;SHARDS" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${T_SOURCES})
  cachalot_unity_groups(${name} ${T_SOURCES})
  target_link_libraries(${name} PRIVATE ${T_LIBRARIES} cachalot_options
    rapidcheck rapidcheck_gtest GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE CACHALOT_TEST_ASSETS="${PROJECT_SOURCE_DIR}/tests/assets")
  # A quarter less time than with -O2, at which the libraries that the tests call are compiled.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  if(NOT T_LABELS)
    set(T_LABELS unit)
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  if(T_SHARDS)
    foreach(shard RANGE 1 ${T_SHARDS})
      math(EXPR index "${shard} - 1")
      set(entry "${name}:${shard} of ${T_SHARDS}")
      add_test(NAME ${entry} COMMAND ${name})
      set_tests_properties(${entry} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}"
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${T_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
    return()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${name}:" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}")
endfunction()
