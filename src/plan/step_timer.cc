#include "plan/step_timer.h"

#include <algorithm>
#include <numeric>

namespace moesaic {

void StepWork::assign(const StepPlan& plan) {
  groups.assign(plan.groups.size(), GroupWork());
  logit_rows.assign(plan.groups.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const PlannedChunk& chunk : plan.groups[g].chunks) {
      if (chunk.is_prefill) {
        groups[g].add_prefill(chunk.num_tokens(), chunk.kv_begin);
      } else {
        groups[g].add_decode(chunk.num_tokens(), chunk.kv_end());
      }
      logit_rows[g] += chunk.num_logit_rows();
    }
  }
}

void StepWork::assign(const StepPlan& plan, const DraftPlan& drafts, int level) {
  groups.assign(plan.groups.size(), GroupWork());
  logit_rows.assign(plan.groups.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const DraftChunk& draft : drafts.groups[g].chunks) {
      const PlannedChunk& chunk = plan.groups[g].chunks[draft.chunk];
      if (level > 0 && level >= draft.depth) continue;
      if (level > 0) {
        groups[g].add_decode(1, chunk.kv_begin + draft.num_rows + level);
      } else if (chunk.is_prefill) {
        groups[g].add_prefill(draft.num_rows, chunk.kv_begin);
      } else {
        groups[g].add_decode(draft.num_rows, chunk.kv_begin + draft.num_rows);
      }
      logit_rows[g] += level < draft.depth ? 1 : 0;
    }
  }
}

double TableStepTimer::most_seconds(const StepTimes& times, const StepWork& work) const {
  double most = 0.0;
  for (const GroupWork& group : work.groups) most = std::max(most, table_->seconds(times, group));
  return most;
}

// The engine samples the rows of all groups.
double TableStepTimer::step_s(const StepWork& work) const {
  const auto logit_rows = std::accumulate(work.logit_rows.begin(), work.logit_rows.end(), int64_t{0});
  return most_seconds(table_->step, work) + table_->host_step_s +
         table_->host_logit_row_s * static_cast<double>(logit_rows);
}

std::string TableStepTimer::source() const {
  if (table_->model.empty()) return table_->device;
  return str_cat("measured: ", table_->model, " on ", table_->device, ", ", table_->layout, ", ", table_->num_threads,
                 table_->num_threads == 1 ? " thread" : " threads");
}

absl::StatusOr<CostStepTimer> CostStepTimer::make(Deployment deployment) {
  if (deployment.num_draft > 0) MOESAIC_RETURN_IF_ERROR(CostModel::make(deployment).status());
  deployment.num_draft = 0;
  MOESAIC_ASSIGN_OR_RETURN(CostModel cost, CostModel::make(deployment));
  // The engine drafts as it decides; a model without the module was refused above if drafts are asked for.
  deployment.num_draft = deployment.model.num_nextn_predict_layers > 0 ? 1 : 0;
  MOESAIC_ASSIGN_OR_RETURN(CostModel draft_cost, CostModel::make(std::move(deployment)));
  return CostStepTimer(std::move(cost), std::move(draft_cost));
}

// As predict() counts them: a step of so many drafts and their verification.
double CostStepTimer::step_s(const StepWork& work) const {
  double seconds = cost_.step(work.groups).seconds;
  for (const GroupWork& group : work.groups) {
    if (group.num_decode_tokens > group.num_decode_seqs) return seconds + draft_host_seconds(cost_.deployment().comm);
  }
  return seconds;
}

double CostStepTimer::draft_level_s(const StepWork& work) const {
  const StepCost step = draft_cost_.step(work.groups);
  const double device = step.seconds - step.host - step.waiting;
  if (device <= 0) return 0;
  return step.draft * (1 + step.waiting / device) + draft_host_seconds(cost_.deployment().comm);
}

std::string CostStepTimer::source() const {
  const Deployment& d = cost_.deployment();
  return str_cat("predicted by the cost model: ", d.hardware.name, ", ", d.layout.to_string(), ", ",
                 d.num_redundant_experts, " redundant experts, expert balancedness ", d.balancedness);
}

}  // namespace moesaic
