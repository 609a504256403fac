// The sum of combine. Any thread; results do not depend on the CPU's vector width.
#pragma once

#include <cstdint>

namespace moesaic {

// y[i] = sum over k of weights[k] * rows[k][i], k ascending, starting from zero; num_rows 0 gives zeros.
void weighted_sum(const float* const* rows, const float* weights, int num_rows, int64_t hidden, float* y);

}  // namespace moesaic
