#include "comm/lockstep.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "comm/parallel_layout.h"

namespace moesaic {
namespace {

static_assert(std::has_unique_object_representations_v<LockstepRecord>);
static_assert(sizeof(LockstepRecord) <= Communicator::kMaxRecordBytes);

// What most ranks say is taken as right, the lowest such rank speaks for it; so the odd one out is named.
template <typename T>
absl::Status check_agreed(std::span<const LockstepRecord> records, T LockstepRecord::*field, std::string_view is_at,
                          std::string_view name) {
  const auto differs = [&](const LockstepRecord& record) { return record.*field != records[0].*field; };
  if (std::none_of(records.begin(), records.end(), differs)) return absl::OkStatus();
  size_t right = 0, most_votes = 0;
  for (size_t r = 0; r < records.size(); ++r) {
    const size_t votes = std::count_if(records.begin(), records.end(),
                                       [&](const LockstepRecord& other) { return other.*field == records[r].*field; });
    if (votes <= most_votes) continue;
    most_votes = votes;
    right = r;
  }
  size_t odd = 0;
  while (records[odd].*field == records[right].*field) ++odd;
  return absl::InternalError(str_cat("ranks are out of step: rank ", odd, " is at ", is_at, " ", records[odd].*field,
                                     ", rank ", right, " at ", is_at, " ", records[right].*field, " (field ", name,
                                     ")"));
}

}  // namespace

absl::StatusOr<LockstepDecision> lockstep(Communicator& world, const LockstepRecord& mine,
                                          int64_t max_low_latency_tokens) {
  MOESAIC_CHECK_LE(world.size(), kMaxRanks);
  alignas(LockstepRecord) std::byte storage[sizeof(LockstepRecord) * kMaxRanks];  // only [0, world.size()) is touched
  const std::span<LockstepRecord> records(reinterpret_cast<LockstepRecord*>(storage), world.size());
  MOESAIC_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(records)));
  MOESAIC_RETURN_IF_ERROR(check_agreed(records, &LockstepRecord::step_id, "step", "step_id"));
  MOESAIC_RETURN_IF_ERROR(
      check_agreed(records, &LockstepRecord::expert_map_version, "expert map version", "expert_map_version"));
  MOESAIC_RETURN_IF_ERROR(check_agreed(records, &LockstepRecord::draft_depth, "draft depth", "draft_depth"));

  LockstepDecision decision;
  for (size_t r = 0; r < records.size(); ++r) {
    const LockstepRecord& record = records[r];
    if (record.num_prefill_tokens < 0 || record.num_decode_tokens < 0) {
      return absl::InternalError(str_cat("rank ", r, " announces ", record.num_prefill_tokens, " prefill and ",
                                         record.num_decode_tokens, " decode tokens (fields num_*_tokens)"));
    }
    const int64_t num_tokens = int64_t{record.num_prefill_tokens} + record.num_decode_tokens;
    const bool fits = record.num_prefill_tokens == 0 && num_tokens <= max_low_latency_tokens;
    if (!fits) decision.a2a_mode = A2aMode::kNormal;
    decision.max_tokens = std::max(decision.max_tokens, num_tokens);
    decision.total_tokens += num_tokens;
    decision.stop = decision.stop || record.stop != 0;
  }
  return decision;
}

}  // namespace moesaic
