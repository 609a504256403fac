// Which instruction set the CPU kernels use: the best that this CPU has, unless a test forces another. Every path gives
// the same bits for the same operation.
#pragma once

#include <cstdint>
#include <string_view>

namespace moesaic {

enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };

std::string_view isa_name(Isa isa);
// kAvx2 stands for AVX2 and FMA; kAvx512 for F, BW, DQ and VL.
bool isa_supported(Isa isa);
Isa active_isa();
// Tests and benchmarks only, while no operation runs. The ISA must be supported.
void force_isa(Isa isa);

}  // namespace moesaic
