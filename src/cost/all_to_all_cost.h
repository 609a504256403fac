// Seconds of dispatch and combine, by bytes and latency for each class of link. Host-only, pure.
#pragma once

#include "cost/cost_model.h"

namespace moesaic {

struct AllToAllTime {
  double dispatch = 0;
  double combine = 0;
};

// `tokens`: what one rank sends. low_latency: a copy of a token for each of its experts, as decode does; otherwise
// one for each rank of the own node and one for each other node, whose ranks pass it on (DeepEP's normal mode).
// Fullest rank: it receives 1 / balancedness times the mean; a node, whose ranks share its load, half of that excess.
AllToAllTime all_to_all_time(const Deployment& deployment, double tokens, bool low_latency);

// Nodes that a token goes to, of num_nodes, the own one counted: experts are chosen inside topk_group of n_group groups
// (DeepSeek-V3 technical report, 2.1.2), and groups lie on neighbouring nodes.
double nodes_of_token(const ModelConfig& model, double num_nodes);

// The bound of "Insights into DeepSeek-V3" (arXiv 2505.09343, 4.3): each layer exchanges `copies` of each token twice,
// in FP8 and in BF16 together 3 bytes a channel, at the full bandwidth, and all else is hidden.
double theoretical_tpot_seconds(double tokens, double copies, double channels, double layers, double gb_per_s);

}  // namespace moesaic
