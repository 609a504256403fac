# The CUDA backend: nvcc 13 for Hopper. `90a` names wgmma and setmaxnreg; the runtime is linked statically, so that
# binaries need nothing but the driver. CMake 3.25 does not know that nvcc speaks C++20: it is told the flag.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;-lineinfo;--expt-relaxed-constexpr>)
