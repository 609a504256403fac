// Compiles a stretch of a file for an instruction set whatever the flags. Everything that the stretch uses from the
// standard library must be included before it, so that no shared inline function is compiled for that set; a template
// header that is meant for it is included inside.
//
//   MOESAIC_TARGET_AVX2_BEGIN
//   void f_avx2() { ... }
//   MOESAIC_TARGET_END
#pragma once

#if defined(__clang__)
// _Pragma takes one literal.
// clang-format off
#define MOESAIC_TARGET_AVX2_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx2,fma\"))), apply_to = function)")
#define MOESAIC_TARGET_AVX512_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,fma\"))),apply_to=function)")
#define MOESAIC_TARGET_AMX_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,fma,avx512bf16,amx-tile,amx-bf16\"))),apply_to=function)")
// clang-format on
#define MOESAIC_TARGET_END _Pragma("clang attribute pop")
#else
#define MOESAIC_TARGET_AVX2_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define MOESAIC_TARGET_AVX512_BEGIN \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,fma\")")
#define MOESAIC_TARGET_AMX_BEGIN \
  _Pragma("GCC push_options")    \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,fma,avx512bf16,amx-tile,amx-bf16\")")
#define MOESAIC_TARGET_END _Pragma("GCC pop_options")
#endif
