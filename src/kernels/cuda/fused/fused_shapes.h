// DeepSeek-V3's sizes between the GEMMs: what is timed (fused_bench.cc) and what is tested at full size are these.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic::cuda {

inline constexpr int64_t kHidden = 7168, kExperts = 256, kTopk = 8, kInter = 2048, kVocab = 129280;
inline constexpr int64_t kHeads = 128, kQueryDim = 192, kLora = 512, kRope = 64;
inline constexpr int64_t kMaskedGroups = 32;  // of SiLU, with equal shares of the rows and four times the room

struct TokenRange {
  int64_t least, most;
};
inline constexpr TokenRange kNormTokens{1, 4096}, kSiluTokens{128, 32768}, kGateTokens{1, 32768};
inline constexpr TokenRange kExpertRowsTokens{1, 4096}, kRopeTokens{1, 4096}, kCombineTokens{1, 4096};
inline constexpr TokenRange kSampleRows{1, 128};

inline std::vector<int64_t> token_counts(TokenRange range) {
  std::vector<int64_t> counts;
  for (const int64_t m : {4096, 1, 16, 128, 1024, 32768}) {
    if (range.least <= m && m <= range.most) counts.push_back(m);
  }
  return counts;
}

}  // namespace moesaic::cuda
