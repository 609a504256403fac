#include "kernels/cpu/simd.h"

#include <atomic>

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moesaic {
namespace {

#if defined(__x86_64__)
// AMX with bf16, VBMI, and the operating system's leave to use the tile registers (this process asks for it once).
bool has_amx() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kVbmi = 1u << 1;
    if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0 || (ecx & kVbmi) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}
#endif

Isa best_isa() {
  if (isa_supported(Isa::kAmx)) return Isa::kAmx;
  if (isa_supported(Isa::kAvx512)) return Isa::kAvx512;
  if (isa_supported(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kPlain;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return "plain";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  MOESAIC_CHECK(false);
}

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kPlain:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return isa_supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Isa::kAmx:
      return isa_supported(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16") && has_amx();
  }
  return false;
#else
  return isa == Isa::kPlain;
#endif
}

Isa active_isa() {
  return current().load(std::memory_order_relaxed);
}

void force_isa(Isa isa) {
  MOESAIC_CHECK(isa_supported(isa));
  current().store(isa);
}

}  // namespace moesaic
