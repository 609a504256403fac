// e^x with the CPU's bits (kernels/cpu/vector_ops.inc): about 1 ulp in [-87, 88.3]; 0 below, e^88.3 above; NaN stays.
#pragma once

namespace moesaic::cuda {

__device__ inline float cpu_exp(float x) {
  const float clamped = fminf(88.3f, fmaxf(-88.0f, x));
  const float shifted = fmaf(clamped, 1.44269504f, 12582912.0f);  // the integer n in the low bits
  const float n = __fsub_rn(shifted, 12582912.0f);
  const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, clamped));
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = __fadd_rn(fmaf(p, __fmul_rn(r, r), r), 1.0f);
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
  if (x < -87.0f) return 0.0f;
  return isnan(x) ? x : __fmul_rn(p, power);
}

}  // namespace moesaic::cuda
