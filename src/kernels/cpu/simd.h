// Which instruction set the CPU kernels use: the best that this CPU has, unless a test forces another. Plain, AVX2 and
// AVX-512 give the same bits for the same operation; AMX sums in another order and gives its own.
#pragma once

#include <cstdint>
#include <string_view>

namespace moesaic {

enum class Isa : uint8_t { kPlain, kAvx2, kAvx512, kAmx };

std::string_view isa_name(Isa isa);
// kAvx2 stands for AVX2 and FMA; kAvx512 for F, BW, DQ and VL; kAmx for these, VBMI and AMX's bf16
// tiles, which the kernel is asked for.
bool isa_supported(Isa isa);
Isa active_isa();
// Tests and benchmarks only, while no operation runs. The ISA must be supported.
void force_isa(Isa isa);

}  // namespace moesaic
