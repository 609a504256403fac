#include "comm/all_to_all.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
#include "comm/all_to_all_buffers.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxSlots = 1 << 16;
constexpr int64_t kMaxHidden = 1 << 20;
constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxAlignment = 4096;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

int64_t slots_per_rank(const AllToAllOptions& options) {
  return (options.num_slots + options.num_ranks - 1) / options.num_ranks;
}

int64_t max_tokens(const AllToAllOptions& options) {
  return std::max(options.max_tokens_normal, options.max_tokens_low_latency);
}

int64_t row_bytes(const AllToAllOptions& options) {
  const int64_t rows = std::max(AllToAll::capacity_rows(options, A2aMode::kNormal),
                                AllToAll::capacity_rows(options, A2aMode::kLowLatency));
  return rows * options.hidden * static_cast<int64_t>(sizeof(float));
}

// Hands out aligned pieces of `base`, or only counts when it is null.
class Cutter {
 public:
  explicit Cutter(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <typename T>
  void cut(T*& pointer, int64_t count) {
    if (base_ != nullptr) pointer = reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

template <typename Tables>
int64_t cut_tables(const AllToAllOptions& options, void* base, Tables& tables) {
  const int64_t num_ids = max_tokens(options) * options.num_experts_per_tok;
  const int64_t local_slots = slots_per_rank(options);
  Cutter cutter(base);
  cutter.cut(tables.routes, num_ids);
  cutter.cut(tables.weights, num_ids);
  cutter.cut(tables.entries, num_ids);
  cutter.cut(tables.sorted, options.num_ranks > 1 ? num_ids : 0);
  cutter.cut(tables.dest_begin, options.num_ranks + 1);
  cutter.cut(tables.dest_next, options.num_ranks);
  cutter.cut(tables.counts, options.num_slots);
  cutter.cut(tables.last_token, options.num_slots);
  cutter.cut(tables.payload, options.fp8 ? max_tokens(options) * options.hidden : 0);
  cutter.cut(tables.payload_scales,
             options.fp8 ? max_tokens(options) * ((options.hidden + kPayloadScaleGroup - 1) / kPayloadScaleGroup) : 0);
  cutter.cut(tables.group_begin, local_slots);
  cutter.cut(tables.group_rows, local_slots);
  cutter.cut(tables.source_begin, options.num_ranks * local_slots);
  return cutter.used();
}

struct TablePointers {
  A2aRoute* routes;
  float* weights;
  A2aEntry *entries, *sorted;
  int32_t *dest_begin, *dest_next, *counts, *last_token;
  uint8_t* payload;
  float* payload_scales;
  int32_t *group_begin, *group_rows, *source_begin;
};

int64_t table_bytes(const AllToAllOptions& options) {
  TablePointers unused;
  return cut_tables(options, nullptr, unused);
}

// Few rows of a slot are in use at a time, slots are far apart: huge pages would keep mostly unused memory resident.
void use_small_pages(const Buffer& buffer) {
#if defined(MADV_NOHUGEPAGE)
  constexpr int64_t kMappedBytes = int64_t{2} << 20;
  if (buffer.num_bytes() >= kMappedBytes) madvise(buffer.data(), buffer.num_bytes(), MADV_NOHUGEPAGE);
#endif
}

absl::Status check_range(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("all-to-all: ", name, " is ", value, "; expected ", least, " to ", most));
}

}  // namespace

absl::Status AllToAll::validate(const AllToAllOptions& options) {
  MOESAIC_RETURN_IF_ERROR(check_range("num_ranks", options.num_ranks, 1, kMaxRanks));
  MOESAIC_RETURN_IF_ERROR(check_range("num_slots", options.num_slots, 1, kMaxSlots));
  MOESAIC_RETURN_IF_ERROR(check_range("hidden", options.hidden, 1, kMaxHidden));
  MOESAIC_RETURN_IF_ERROR(check_range("num_experts_per_tok", options.num_experts_per_tok, 1, kMaxExpertsPerTok));
  MOESAIC_RETURN_IF_ERROR(check_range("max_tokens_normal", options.max_tokens_normal, 0, kMaxTokens));
  MOESAIC_RETURN_IF_ERROR(check_range("max_tokens_low_latency", options.max_tokens_low_latency, 0, kMaxTokens));
  MOESAIC_RETURN_IF_ERROR(check_range("expert_alignment", options.expert_alignment, 1, kMaxAlignment));
  MOESAIC_RETURN_IF_ERROR(check_range("timeout_ms", options.timeout_ms, 1, int64_t{1} << 40));
  const int64_t rows = std::max(capacity_rows(options, A2aMode::kNormal), capacity_rows(options, A2aMode::kLowLatency));
  if (rows <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("all-to-all: ", options.num_ranks, " ranks x ", max_tokens(options),
                                            " tokens can send ", rows, " rows to one rank; at most ", INT32_MAX,
                                            ". Lower max_tokens_per_step"));
}

// A token takes at most one row in each slot, and at most num_experts_per_tok in all.
int64_t AllToAll::capacity_rows(const AllToAllOptions& options, A2aMode mode) {
  const int64_t local_slots = slots_per_rank(options);
  if (mode == A2aMode::kLowLatency) return local_slots * options.num_ranks * options.max_tokens_low_latency;
  const int64_t num_tokens = int64_t{options.num_ranks} * options.max_tokens_normal;
  const int64_t rows_per_token = std::min<int64_t>(options.num_experts_per_tok, local_slots);
  const int64_t worst = std::min(num_tokens * rows_per_token + local_slots * (options.expert_alignment - 1),
                                 local_slots * round_up(num_tokens, options.expert_alignment));
  return round_up(worst, options.expert_alignment);
}

int64_t AllToAll::buffer_bytes(const AllToAllOptions& options) {
  return row_bytes(options) + table_bytes(options);
}

A2aBuffers::A2aBuffers(const AllToAllOptions& options) : rows_(row_bytes(options)), tables_(table_bytes(options)) {
  use_small_pages(rows_);
  cut_tables(options, tables_.data(), *this);
  if (options.num_ranks == 1) sorted = entries;
}

}  // namespace moesaic
