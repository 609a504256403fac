// What the all-to-all does to single rows. Any thread; results do not depend on the CPU's vector width.
#pragma once

#include <cstdint>

namespace moesaic {

// y[i] = sum over k of weights[k] * rows[k][i], k ascending, starting from zero; num_rows 0 gives zeros.
void weighted_sum(const float* const* rows, const float* weights, int num_rows, int64_t hidden, float* y);

// Per 128 channels (the last group may be shorter): scale = max(amax, 1e-4) / 448, q = e4m3(x / scale).
void quantize_row(const float* x, int64_t hidden, uint8_t* q, float* scales);

// y[i] = e4m3 value of q[i] * scales[i / 128].
void dequantize_row(const uint8_t* q, const float* scales, int64_t hidden, float* y);

}  // namespace moesaic
