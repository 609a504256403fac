#include "cost/all_to_all_cost.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kGiga = 1e9;
constexpr double kScaleGroup = 128;  // channels with one f32 scale

struct LinkCost {
  double node_latency;    // seconds of an exchange of nothing inside a node
  double remote_latency;  // the same between nodes
  double nvlink_share;    // of the bandwidth, own rank's copies not counted
  double nic_share;
};

struct FamilyCost {
  LinkCost dispatch, combine;
};

// DeepEP: the twelve low-latency rows of its table at 128 tokens (F155-F166), mean error 2.4 %.
// pplx: its table (F180-F197) and the layers of Perplexity's article (F031-F049), which disagree by up to 26 % inside a
// node and 18 % between nodes; the shares lie between them.
// Moesaic moves the same bytes; its device kernels have no table of their own, so DeepEP's latencies stand for them.
FamilyCost family_cost(CommFamily family) {
  if (family == CommFamily::kPplx) return {{42e-6, 122e-6, 0.34, 0.80}, {42e-6, 60e-6, 0.34, 0.535}};
  return {{42e-6, 42e-6, 0.95, 1.0}, {45e-6, 45e-6, 0.95, 0.93}};
}

// DeepEP's normal mode on 4,096 tokens (F167-F174): 43.5 to 44.6 of 50 GB/s, 153 and 158 of 200 GB/s.
constexpr double kNormalNicShare = 0.88;
constexpr double kNormalNvlinkShare = 0.77;

struct Traffic {
  double rows = 0;    // that leave a rank for other ranks of its node
  double remote = 0;  // for other nodes
};

double seconds(const HardwareSpec& hardware, const LinkCost& link, const Traffic& traffic, double row_bytes) {
  const double local = traffic.rows * row_bytes / (link.nvlink_share * hardware.nvlink_gb_per_s * kGiga);
  const double remote = traffic.remote * row_bytes / (link.nic_share * hardware.nic_gb_per_s * kGiga);
  return (traffic.remote > 0 ? link.remote_latency : link.node_latency) + std::max(local, remote);
}

}  // namespace

double nodes_of_token(const ModelConfig& model, double num_nodes) {
  const double topk = static_cast<double>(model.num_experts_per_tok);
  const double groups = static_cast<double>(model.n_group), kept = static_cast<double>(model.topk_group);
  if (groups <= 1) return num_nodes * (1 - std::pow(1 - 1 / num_nodes, topk));
  // A node holds groups / num_nodes groups, or a group lies on several nodes.
  const double on_node = std::max(1.0, groups / num_nodes);
  double missed = 1;  // chance that none of the kept groups lies on a node
  for (double i = 0; i < kept; ++i) missed *= std::max(0.0, groups - on_node - i) / (groups - i);
  const double nodes_of_group = std::max(1.0, num_nodes / groups);
  const double drawn = topk / kept * on_node;
  return num_nodes * (1 - missed) * (nodes_of_group > 1 ? 1 - std::pow(1 - 1 / nodes_of_group, drawn) : 1);
}

double theoretical_tpot_seconds(double tokens, double copies, double channels, double layers, double gb_per_s) {
  return 3 * tokens * copies * channels / (gb_per_s * kGiga) * 2 * layers;
}

AllToAllTime all_to_all_time(const Deployment& d, double tokens, bool low_latency) {
  const double ranks = d.layout.ep_size();
  if (ranks <= 1 || tokens <= 0) return {};
  const double domain = std::min(ranks, static_cast<double>(d.hardware.nvlink_domain));
  const double num_nodes = ranks / domain, topk = static_cast<double>(d.model.num_experts_per_tok);
  const double excess = 1 / d.balancedness - 1;
  FamilyCost cost = family_cost(d.comm);
  Traffic traffic;
  if (low_latency) {
    const double rows = tokens * topk * (1 + excess);
    traffic = {rows * (domain - 1) / ranks, rows * (ranks - domain) / ranks};
  } else {
    const double ranks_of_token = domain * (1 - std::pow(1 - 1 / domain, topk));
    traffic.rows = tokens * ranks_of_token * (domain - 1) / domain * (1 + excess);
    traffic.remote = tokens * nodes_of_token(d.model, num_nodes) * (1 - 1 / num_nodes) * (1 + excess / 2);
    cost.dispatch.nic_share = cost.combine.nic_share = std::min(kNormalNicShare, cost.combine.nic_share);
    cost.dispatch.nvlink_share = cost.combine.nvlink_share = std::min(kNormalNvlinkShare, cost.combine.nvlink_share);
  }
  const double hidden = static_cast<double>(d.model.hidden_size);
  const double dispatch_row = d.model.fp8_weights ? hidden * (1 + 4 / kScaleGroup) : hidden * 2;
  return {seconds(d.hardware, cost.dispatch, traffic, dispatch_row),
          seconds(d.hardware, cost.combine, traffic, hidden * 2)};
}

}  // namespace moesaic
