#include "cost/all_to_all_cost.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kGiga = 1e9;

struct LinkCost {
  double latency;    // seconds of an exchange of nothing
  double nic_share;  // of the NIC's bandwidth
  double nvlink_share;
};

struct FamilyCost {
  LinkCost dispatch, combine;
};

FamilyCost family_cost(CommFamily family) {
  if (family == CommFamily::kPplx) return {{122e-6, 0.78, 0.40}, {60e-6, 0.52, 0.54}};
  return {{42e-6, 1.0, 0.8}, {45e-6, 0.93, 0.8}};
}

double exchange(const HardwareSpec& hardware, const LinkCost& link, double bytes, double remote_share) {
  const double remote = bytes * remote_share / (link.nic_share * hardware.nic_gb_per_s * kGiga);
  const double local = bytes * (1 - remote_share) / (link.nvlink_share * hardware.nvlink_gb_per_s * kGiga);
  return link.latency + std::max(remote, local);
}

}  // namespace

AllToAllTime all_to_all_time(const HardwareSpec& hardware, CommFamily family, const AllToAllShape& s) {
  if (s.ranks <= 1 || s.tokens <= 0) return {};
  const double domain = static_cast<double>(std::min(s.ranks, hardware.nvlink_domain));
  const double num_domains = static_cast<double>(s.ranks) / domain;
  const double hidden = static_cast<double>(s.hidden);
  const double dispatch_row = s.fp8_dispatch ? hidden * (1 + 4.0 / 128) : hidden * 2;
  const double topk = static_cast<double>(s.topk);
  double copies = topk, remote_share = 1 - 1 / num_domains;
  if (!s.low_latency && num_domains > 1) copies = num_domains * (1 - std::pow(1 - 1 / num_domains, topk));
  const double rows = s.tokens * copies * s.received;
  const FamilyCost cost = family_cost(family);
  return {exchange(hardware, cost.dispatch, rows * dispatch_row, remote_share),
          exchange(hardware, cost.combine, rows * hidden * 2, remote_share)};
}

}  // namespace moesaic
