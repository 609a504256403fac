#include "kernels/cpu/vector_ops.h"

#include "kernels/cpu/simd.h"

namespace moesaic {

const VectorOps& vector_ops() {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kAmx:
    case Isa::kAvx512:
      return kAvx512VectorOps;
    case Isa::kAvx2:
      return kAvx2VectorOps;
    case Isa::kPlain:
      break;
  }
#endif
  return kPlainVectorOps;
}

}  // namespace moesaic
