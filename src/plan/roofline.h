// roofline: the kernels of a decode layer at several EP and batch sizes: arithmetic intensity, which roof bounds them,
// what the model gives them, and what a table measured. As Perplexity's article draws them. Pure.
#pragma once

#include <string>
#include <vector>

#include "cost/deployment.h"
#include "plan/report.h"

namespace moesaic {

struct RooflineRow {
  std::string kernel;  // "o_proj", "experts gate+up", "MLA"
  int64_t ep = 0;      // 0: does not depend on it
  int64_t batch = 0;   // requests of a DP rank
  double m = 0;        // rows of a matrix; of attention, query tokens
  double flops_per_byte = 0;
  double roof_tflops = 0;  // the lower of peak and intensity x bandwidth, by the datasheet
  bool is_memory_bound = false;
  double predicted_us = 0;
  double predicted_tflops = 0;
  bool is_measured = false;  // predicted_us is a row of the deployment's kernel table
};

struct RooflineRequest {
  Deployment deployment;  // its layout is not used but for TP
  std::vector<int64_t> ep_sizes = {8, 16, 32, 64, 128};
  std::vector<int64_t> batches = {1, 2, 4, 8, 16, 32, 64, 128};
  int64_t query_len = 2;
  int64_t kv_len = 5000;
};

std::vector<RooflineRow> roofline(const RooflineRequest& request);
std::string roofline_table(const std::vector<RooflineRow>& rows);
// A complete SVG: both roofs, a mark for each row, a colour for each kernel; readable on light and dark ground.
std::string roofline_svg(const std::vector<RooflineRow>& rows, const HardwareSpec& hardware);
// A page: the figure and the table, measured and predicted rows apart.
Report roofline_report(const std::vector<RooflineRow>& rows, const HardwareSpec& hardware, const std::string& command);

}  // namespace moesaic
