// The parts of a layer as kernels: which run, in what shapes, for one micro-batch of a rank. Internal to cost.
#pragma once

#include "cost/cost_model.h"
#include "cost/kernel_cost.h"

namespace moesaic {

// A step as its slowest rank sees it.
struct RankWork {
  GroupWork group;         // the largest of each quantity over the DP groups
  double mean_tokens = 0;  // tokens of a DP group, mean
};

// Half the work, for one of two micro-batches, has share 0.5.
RankWork slowest_rank(std::span<const GroupWork> groups);

// seconds and exposed_comm of the result are not set. `share` of the step's work; sm_share of the GPU's SMs.
LayerCost moe_layer_parts(const Deployment& deployment, const RankWork& work, double share, double sm_share);
double dense_layer_seconds(const Deployment& deployment, const RankWork& work);
double head_seconds(const Deployment& deployment, const RankWork& work);
double draft_seconds(const Deployment& deployment, const RankWork& work);

}  // namespace moesaic
