// Charts as inline SVG. Colours, fonts and line widths come from the page's style (report_html.cc). Pure.
#pragma once

#include <string>
#include <string_view>

#include "plan/report.h"

namespace moesaic {

std::string chart_svg(const Chart& chart);
// Text between tags or in an attribute.
std::string escape_html(std::string_view text);

// Number of colours: series beyond share the last one.
inline constexpr int kNumSeriesColors = 9;

}  // namespace moesaic
