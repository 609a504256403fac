// How balanced experts are on the ranks, with and without placement, on the traffic that the placement was planned for
// and on other traffic; and what redundant experts are worth under the cost model. What `moesaic plan experts` says.
#pragma once

#include <string>
#include <vector>

#include "base/thread.h"
#include "comm/expert_placement.h"
#include "plan/expert_load.h"
#include "plan/predict.h"
#include "plan/report.h"

namespace moesaic {

// Balancedness (mean over maximum of the ranks) of one layer.
struct LayerBalance {
  double natural = 0;    // experts in their order, none redundant
  double published = 0;  // the published algorithm
  double planned = 0;    // Moesaic's
};

struct Balance {
  PlacementShape shape;
  std::vector<LayerBalance> in;   // by layer, on the loads that placements were planned for
  std::vector<LayerBalance> out;  // the same placements on other loads
  LayerBalance mean_in, mean_out;
};

// planned and other: the same layers and experts. Error: a shape that is not theirs or not possible. Where the
// published algorithm's hierarchical policy cannot split the shape, its global one is measured.
absl::StatusOr<Balance> measure_balance(const PlacementShape& shape, const ExpertLoads& planned,
                                        const ExpertLoads& other, ThreadPool* pool);

// What so many slots a rank are worth.
struct RedundancyRow {
  Balance balance;
  Prediction prediction;  // at the balancedness of other traffic
  int redundant() const { return balance.shape.num_slots - balance.shape.num_experts; }
};

struct ExpertsQuestion {
  Deployment deployment;  // redundant experts and balancedness are what is asked for
  OperatingPoint point;
  int64_t gpus_per_node = 8;
  std::vector<ExpertLoads> loads;  // placements are planned on each and measured on the next; one: on itself alone
  bool is_recorded = false;
  int max_extra_slots = 4;  // tried: from the least slots a rank to so many more
};

struct ExpertsAnswer {
  ExpertsQuestion question;
  std::vector<RedundancyRow> rows;  // by slots a rank
  Prediction unplaced;              // row 0's slots, at the balancedness of experts in their order
  size_t best = 0;                  // the last row that fits and gains 1 % on the one before; else row 0
  std::vector<Balance> by_ranks;  // EP 8 to 128 and the deployment's, with about as many redundant experts as the best
  bool has_other() const { return question.loads.size() > 1; }
};

// Errors: a dense model, loads of another shape, what CostModel refuses.
absl::StatusOr<ExpertsAnswer> answer_experts(ExpertsQuestion question, ThreadPool* pool);

std::string experts_text(const ExpertsAnswer& answer);
std::string experts_json(const ExpertsAnswer& answer);  // one object
Report experts_report(const ExpertsAnswer& answer, const std::string& command);

}  // namespace moesaic
