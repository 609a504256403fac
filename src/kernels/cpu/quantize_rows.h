// FP8 activation quantisation of one row, without threads: for operations that round their own result (silu_mul). Any
// thread. Groups of 128 channels from the row's start; see ops.h for the definition. A NaN takes no part in its group's
// maximum and stays NaN.
#pragma once

#include <cstdint>

namespace moesaic {

void quantize_fp8_row(const float* x, int64_t k, uint8_t* q, float* scales);
void dequantize_fp8_row(const uint8_t* q, const float* scales, int64_t k, float* y);
void round_trip_fp8_row(const float* x, int64_t k, float* y);  // y may be x

// One group of at most 128 in one instruction set; the AVX2 forms need isa_supported(Isa::kAvx2). Same bits.
float quantize_group_plain(const float* x, int64_t count, uint8_t* q);  // returns the scale
void dequantize_group_plain(const uint8_t* q, float scale, int64_t count, float* y);
void round_trip_group_plain(const float* x, int64_t count, float* y);
float quantize_group_avx2(const float* x, int64_t count, uint8_t* q);
void dequantize_group_avx2(const uint8_t* q, float scale, int64_t count, float* y);
void round_trip_group_avx2(const float* x, int64_t count, float* y);

}  // namespace moesaic
