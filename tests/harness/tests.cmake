# SPDX-License-Identifier: Apache-2.0
# How the tests of the folders of tests/ are named: FOLDER/NAME, with the label FOLDER. A program's test has the label
# `sanitizers` if the builds with sanitizers run it, too, and `hosts` if its ranks are on several hosts, or `single_threaded` if
# ThreadSanitizer has nothing to find there. A script's has `shell`.

# odc_test_program(NAME SOURCE...): FOLDER/NAME_test in the build, by the target FOLDER_NAME.
function(odc_test_program name)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  add_executable(${folder}_${name} ${ARGN})
  set_target_properties(${folder}_${name} PROPERTIES OUTPUT_NAME ${name}_test)
endfunction()

# odc_test_order(TEST): ctest begins with those of long_tests.
function(odc_test_order test)
  if(${test} IN_LIST long_tests)
    set_tests_properties(${test} PROPERTIES COST 100)
  endif()
endfunction()

# odc_test_tier(TEST LABELS): adds the label of the tier of run.sh: `quick`, `full` for tests that only
# `release` and `full` run, or none.
macro(odc_test_tier test labels)
  foreach(tier quick full)
    foreach(tests ${${tier}_tests})
      if(${test} MATCHES "^${tests}$")
        list(APPEND ${labels} ${tier})
      endif()
    endforeach()
  endforeach()
endmacro()

# odc_test(NAME PROGRAM [ARGUMENTS ...] [ENVIRONMENT VARIABLE=VALUE...] [LABELS sanitizers|hosts...] [UNDER COMMAND...]): of
# several values of a variable the last one counts.
function(odc_test name program)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  cmake_parse_arguments(PARSE_ARGV 2 test "" "" "ARGUMENTS;ENVIRONMENT;LABELS;UNDER")
  if(NOT test_LABELS)
    set(test_LABELS sanitizers)
  endif()
  if(${folder}/${name} IN_LIST package_tests)
    list(APPEND test_LABELS package)
    add_dependencies(package_tests ${folder}_${program})
  endif()
  odc_test_tier(${folder}/${name} test_LABELS)
  set_property(GLOBAL APPEND_STRING PROPERTY odc_needed "${folder}/${name} ${folder}_${program} fakes\n")
  # By the target's name, so that CMake puts the emulator of another processor before it.
  set(command ${folder}_${program})
  if(test_UNDER)
    set(command ${test_UNDER} $<TARGET_FILE:${command}>)
  endif()
  add_test(NAME ${folder}/${name} COMMAND ${command} ${test_ARGUMENTS})
  set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 600 LABELS "${folder};${test_LABELS}"
                                                    ENVIRONMENT "${test_environment};${test_ENVIRONMENT}")
  if(test_UNDER)
    set_tests_properties(${folder}/${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  odc_test_order(${folder}/${name})
endfunction()

# odc_c_tests([VARIABLE=VALUE...]): every *_test.c of this folder, which sees the library through <odc/odc.h> only.
function(odc_c_tests)
  file(GLOB sources CONFIGURE_DEPENDS *_test.c)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${name})
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    odc_test_program(${name} ${source})
    target_link_libraries(${folder}_${name} PRIVATE test_ranks odc::odc)
    odc_test(${name} ${name} ENVIRONMENT ${ARGN})
  endforeach()
endfunction()

# odc_unit_tests(): every *_test.cc of this folder, which sees the library's own headers. A build with ThreadSanitizer leaves out
# those that name neither threads nor ranks, which are threads there: they have no races.
function(odc_unit_tests)
  file(GLOB sources CONFIGURE_DEPENDS *_test.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${name})
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    odc_test_program(${name} ${source})
    target_include_directories(${folder}_${name} PRIVATE ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR}/cuda)
    target_include_directories(${folder}_${name} SYSTEM PRIVATE ${ODC_LIBFABRIC_INCLUDE_DIRS})
    target_link_libraries(${folder}_${name} PRIVATE test_ranks odc::static)
    file(STRINGS ${source} threads REGEX "thread|run_ranks|run_processes" LIMIT_COUNT 1)
    if(NOT threads AND CMAKE_CXX_FLAGS MATCHES "-fsanitize=thread")
      set_target_properties(${folder}_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
      odc_test(${name} ${name} LABELS single_threaded)
    else()
      odc_test(${name} ${name})
    endif()
    add_dependencies(unit_tests ${folder}_${name})
  endforeach()
endfunction()

# odc_shell_tests([TARGET...]): every *_test.sh of this folder; they need the odc command and these targets.
function(odc_shell_tests)
  if(NOT ODC_TOOLS)
    return()
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  file(GLOB sources CONFIGURE_DEPENDS *_test.sh)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${name})
    set(labels ${folder} shell)
    odc_test_tier(${folder}/${name} labels)
    add_test(NAME ${folder}/${name} COMMAND bash ${source})
    string(REPLACE ";" " " needed "odc;odc_static;odc_command;${ARGN}")
    set_property(GLOBAL APPEND_STRING PROPERTY odc_needed "${folder}/${name} ${needed}\n")
    set_tests_properties(${folder}/${name} PROPERTIES TIMEOUT 1800 LABELS "${labels}" SKIP_RETURN_CODE 77)
    set_property(TEST ${folder}/${name} PROPERTY ENVIRONMENT ODC_BUILD_DIR=${CMAKE_BINARY_DIR}
                 ODC_SOURCE_DIR=${PROJECT_SOURCE_DIR} ODC=$<TARGET_FILE:odc_command>)
    odc_test_order(${folder}/${name})
  endforeach()
endfunction()
