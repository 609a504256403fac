# The CUDA backend: nvcc 13 for Hopper. `90a` names wgmma and setmaxnreg; the runtime is linked statically, so that
# binaries need nothing but the driver. CMake 3.25 does not know that nvcc speaks C++20: the flag is given by hand.
set(CMAKE_CUDA_ARCHITECTURES 90a)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
target_compile_options(moesaic_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--std=c++20;-Xcompiler=-Wall;-lineinfo;--expt-relaxed-constexpr>)
