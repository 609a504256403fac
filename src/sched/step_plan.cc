#include "sched/step_plan.h"

#include "base/strings.h"

namespace moesaic {
namespace {

std::string to_string(const PlannedChunk& chunk) {
  if (!chunk.is_prefill && chunk.samples && chunk.num_tokens() == 1 + chunk.num_draft) {
    const std::string drafts = chunk.num_draft > 0 ? str_cat("+", chunk.num_draft) : "";
    return str_cat("decode r", chunk.request_id, "@", chunk.kv_begin, drafts);
  }
  std::string text = str_cat(chunk.is_prefill ? "prefill" : "replay", " r", chunk.request_id, "[", chunk.kv_begin, ",",
                             chunk.kv_end(), ") of ", chunk.num_total);
  if (chunk.all_logits) text += " logits";
  return text;
}

}  // namespace

std::string StepPlan::to_string() const {
  std::string text;
  for (size_t group = 0; group < groups.size(); ++group) {
    std::vector<std::string> parts;
    for (const PlannedChunk& chunk : groups[group].chunks) parts.push_back(moesaic::to_string(chunk));
    for (const RequestId id : groups[group].preempted) parts.push_back(str_cat("preempt r", id));
    if (parts.empty()) parts.push_back("idle");
    text += str_cat("step ", step_id, " dp", group, ": ", str_join(parts, ", "), "\n");
  }
  return text;
}

}  // namespace moesaic
