# moesaic_library(NAME base SRCS a.cc b.cc DEPS absl::status): one static library a folder.
# moesaic_test(NAME base SRCS a_test.cc DEPS moesaic_x LABELS unit): one gtest binary a folder, each case a ctest of its own.
# moesaic_fuzz(NAME config SRCS config_fuzz.cc DEPS moesaic_model): a libFuzzer target; ctest runs it for some seconds.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(absl REQUIRED CONFIG)

add_library(moesaic_flags INTERFACE)
# -ffp-contract=off: results must not depend on what the compiler fuses; kernels ask for FMA by name.
target_compile_options(moesaic_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers;-ffp-contract=off;-fno-omit-frame-pointer>)
target_include_directories(moesaic_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(moesaic_flags INTERFACE Threads::Threads)
if(MOESAIC_SANITIZE)
  target_compile_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(moesaic_flags INTERFACE -fsanitize=${MOESAIC_SANITIZE})
endif()
if(MOESAIC_FUZZ)
  target_compile_options(moesaic_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(moesaic_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(moesaic_${ARG_NAME} STATIC ${ARG_SRCS})
  target_link_libraries(moesaic_${ARG_NAME} PUBLIC moesaic_flags ${ARG_DEPS})
endfunction()

function(moesaic_test)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT MOESAIC_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${ARG_NAME}_test ${ARG_SRCS})
  target_link_libraries(${ARG_NAME}_test PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${ARG_NAME}_test PRIVATE MOESAIC_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
endfunction()

function(moesaic_fuzz)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  if(NOT MOESAIC_FUZZ)
    return()
  endif()
  add_executable(${ARG_NAME}_fuzz ${ARG_SRCS})
  target_link_libraries(${ARG_NAME}_fuzz PRIVATE ${ARG_DEPS})
  target_link_options(${ARG_NAME}_fuzz PRIVATE -fsanitize=fuzzer)
  add_test(NAME fuzz_${ARG_NAME} COMMAND ${ARG_NAME}_fuzz -max_total_time=5 -rss_limit_mb=2048 -timeout=5
           ${CMAKE_CURRENT_BINARY_DIR}/corpus_${ARG_NAME} ${CMAKE_SOURCE_DIR}/tests/corpus/${ARG_NAME})
  # libFuzzer writes what it finds into the first folder: not into the source tree.
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/corpus_${ARG_NAME})
  set_property(GLOBAL APPEND PROPERTY MOESAIC_FUZZ_TARGETS ${ARG_NAME}_fuzz)
  set_tests_properties(fuzz_${ARG_NAME} PROPERTIES LABELS fuzz TIMEOUT 60)
endfunction()
