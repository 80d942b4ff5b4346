# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` installs: the headers, both libraries with their CMake and pkg-config descriptions, the odc
# command with its completions, and the man pages.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/odc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Two export sets: users of the shared library need none of the development packages that the static one requires.
foreach(library odc odc_static)
  install(TARGETS ${library} EXPORT ${library}Targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${library}Targets NAMESPACE odc:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/odc)
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/odcConfig.cmake.in ${PROJECT_BINARY_DIR}/odcConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/odc)
# As bindings do: the interface only grows.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/odcConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/odcConfig.cmake ${PROJECT_BINARY_DIR}/odcConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/odc)

# Paths are relative to the file's own, so that the installed tree can be moved.
file(RELATIVE_PATH odc_pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" odc_pc_prefix ${odc_pc_prefix})
file(RELATIVE_PATH odc_pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH odc_pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/odc.pc.in ${PROJECT_BINARY_DIR}/odc.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/odc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET odc_command)
  file(RELATIVE_PATH odc_lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(odc_command PROPERTIES INSTALL_RPATH "$ORIGIN/${odc_lib_from_bin}")
  install(TARGETS odc_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/odc.bash RENAME odc
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/completion/_odc DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
endif()
add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/man)
