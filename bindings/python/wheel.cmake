# SPDX-License-Identifier: Apache-2.0
# Included by libodc's project (CMAKE_PROJECT_odc_INCLUDE in pyproject.toml): the core and the odc command, of the repository or of a
# source distribution, go into the wheel, beside the Python files. A part of the project, so that a compiler cache has the objects.
set(ODC_TOOLS ON)
set(ODC_INSTALL OFF)
set(ODC_TESTS OFF)

function(odc_make_wheel)
  set(here ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  # The one name, without the links of a system library.
  install(FILES $<TARGET_FILE:odc> DESTINATION libodc RENAME libodc.so.0)

  set_target_properties(odc_command PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/..")
  install(PROGRAMS $<TARGET_FILE:odc_command> DESTINATION libodc/bin)
  set(PROJECT_VERSION ${SKBUILD_PROJECT_VERSION})
  file(GLOB pages tools/man/odc*.1)
  foreach(page ${pages})
    get_filename_component(name ${page} NAME)
    configure_file(${page} wheel_man/${name} @ONLY)
  endforeach()
  install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/wheel_man/ DESTINATION ${SKBUILD_DATA_DIR}/share/man/man1)

  # Python's functions are the interpreter's that loads it.
  add_library(odc_native MODULE ${here}/native.c)
  set_target_properties(odc_native PROPERTIES C_VISIBILITY_PRESET default)
  install(TARGETS odc_native LIBRARY DESTINATION libodc)
  install(FILES LICENSE DESTINATION ${SKBUILD_METADATA_DIR}/licenses)
endfunction()
cmake_language(DEFER CALL odc_make_wheel)
