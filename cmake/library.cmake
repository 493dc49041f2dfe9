# What engines link: libcachalot.so, with the C++ API of include/cachalot and the C ABI of c.h, tier_c.h, vmm.h and layerwise.h.
#
#   find_package(cachalot REQUIRED)
#   target_link_libraries(my_engine PRIVATE cachalot::cachalot)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(cachalot_shared SHARED src/client/c/c_api.cpp src/client/c/c_options.cpp
  src/tier/controller/c_api.cpp src/tier/layerwise/c_api.cpp src/vtensor/c_api.cpp)
target_link_libraries(cachalot_shared PRIVATE cachalot_options
  -Wl,--whole-archive cachalot_tier_controller cachalot_transfer_handover cachalot_transfer_segments cachalot_client cachalot_geometry cachalot_base -Wl,--no-whole-archive
  cachalot_vtensor cachalot_tier_layerwise)
target_include_directories(cachalot_shared PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Only what the headers declare; the modules inside stay private.
target_link_options(cachalot_shared PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
set_property(TARGET cachalot_shared APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
target_compile_features(cachalot_shared PUBLIC cxx_std_20)
set_target_properties(cachalot_shared PROPERTIES
  OUTPUT_NAME cachalot EXPORT_NAME cachalot LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
add_library(cachalot::cachalot ALIAS cachalot_shared)

if(CACHALOT_BUILD_TESTS)
  cachalot_test(c_api_test SOURCES ${PROJECT_SOURCE_DIR}/src/client/c/c_api_test.cpp
    ${PROJECT_SOURCE_DIR}/src/vtensor/c_api_test.cpp
    ${PROJECT_SOURCE_DIR}/src/tier/layerwise/c_api_test.cpp LIBRARIES cachalot_shared)
  target_include_directories(c_api_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
endif()

install(TARGETS cachalot_shared EXPORT cachalot LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/cachalot DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT cachalot NAMESPACE cachalot:: FILE cachalot-targets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cachalot)
file(WRITE ${PROJECT_BINARY_DIR}/cachalot-config.cmake
  "include(\"\${CMAKE_CURRENT_LIST_DIR}/cachalot-targets.cmake\")\n")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cachalot-config-version.cmake
  COMPATIBILITY SameMajorVersion)
# For build systems without CMake. The prefix is taken from where the file lies, so that an installed
# tree can be moved.
set(CACHALOT_PKGCONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH CACHALOT_PKGCONFIG_TO_PREFIX /prefix/${CACHALOT_PKGCONFIG_DIR} /prefix)
string(REGEX REPLACE "/$" "" CACHALOT_PKGCONFIG_TO_PREFIX "${CACHALOT_PKGCONFIG_TO_PREFIX}")
configure_file(cmake/cachalot.pc.in cachalot.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cachalot.pc DESTINATION ${CACHALOT_PKGCONFIG_DIR})
install(FILES ${PROJECT_BINARY_DIR}/cachalot-config.cmake ${PROJECT_BINARY_DIR}/cachalot-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cachalot)
