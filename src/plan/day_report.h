// What `moesaic plan day` says: totals of the day and the runs of the policies, as text, JSON or a Report.
#pragma once

#include <string>
#include <vector>

#include "plan/day.h"
#include "plan/report.h"

namespace moesaic {

struct DayAnswer {
  std::vector<DayHour> hours;
  DayTraffic traffic;
  DayFleet fleet;
  DayTotals totals;
  std::array<int, 2> peak;   // units of prefill and decode
  std::vector<DayRun> runs;  // simulated, one a policy
};

DayAnswer answer_day(std::vector<DayHour> hours, const DayTraffic& traffic, const DayFleet& fleet);

std::string day_text(const DayAnswer& answer);
std::string day_json(const DayAnswer& answer);  // one object
Report day_report(const DayAnswer& answer, const std::string& command);

}  // namespace moesaic
