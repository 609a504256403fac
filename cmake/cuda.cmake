# The CUDA backend: nvcc 13 for Hopper. `90a` names wgmma and setmaxnreg; the runtime is linked statically, so that
# binaries need nothing but the driver. CMake 3.25 does not know that nvcc speaks C++20: it is told the flag.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;-lineinfo;--expt-relaxed-constexpr>)

# Test and benchmark programs are copied to machines that have the driver, libc and libstdc++ only: abseil is linked from
# its archives (Debian's package names the shared libraries), spdlog and fmt come from their headers.
get_property(imported_targets DIRECTORY ${CMAKE_SOURCE_DIR} PROPERTY IMPORTED_TARGETS)
list(FILTER imported_targets INCLUDE REGEX "^absl::")
foreach(target ${imported_targets})
  get_target_property(location ${target} IMPORTED_LOCATION_NONE)
  string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${location}")
  if(EXISTS "${archive}")
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE "${archive}" IMPORTED_SONAME_NONE "")
  endif()
endforeach()
find_package(spdlog REQUIRED)
set_target_properties(spdlog::spdlog_header_only PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;fmt::fmt-header-only")
