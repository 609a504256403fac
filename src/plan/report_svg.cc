#include "plan/report_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace moesaic {
namespace {

// Drawn for a width of 420 px: a phone shows it at nearly that size, a wide page puts several side by side.
constexpr double kWidth = 420, kHeight = 260;
constexpr double kLeft = 52, kRight = 10, kTop = 10, kBottom = 40;
constexpr int kTicks = 5;
constexpr size_t kMaxBarLabels = 12;
constexpr size_t kMaxDots = 60;  // a line of so few points shows them

// One axis: data to pixels.
struct Axis {
  double low = 0.0, high = 1.0;
  double from = 0.0, to = 1.0;  // pixels
  bool log = false;
  std::vector<double> ticks;

  bool holds(double value) const { return std::isfinite(value) && (!log || value > 0.0); }
  double scaled(double value) const { return log ? std::log10(value) : value; }
  double at(double value) const { return from + (scaled(value) - low) / (high - low) * (to - from); }
};

// Steps of 1, 2 or 5 times a power of ten; whole decades where a logarithmic axis spans two or more.
void choose_ticks(Axis* axis) {
  if (axis->log && axis->high - axis->low >= 2.0) {
    const double step = std::max(1.0, std::ceil((axis->high - axis->low) / 8.0));
    for (double decade = std::floor(axis->low); decade <= axis->high + 1e-9; decade += step) {
      if (decade >= axis->low - 1e-9) axis->ticks.push_back(std::pow(10.0, decade));
    }
    return;
  }
  const double low = axis->log ? std::pow(10.0, axis->low) : axis->low;
  const double high = axis->log ? std::pow(10.0, axis->high) : axis->high;
  const double raw = (high - low) / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = raw / power <= 1.0   ? power
                      : raw / power <= 2.0 ? 2 * power
                      : raw / power <= 5.0 ? 5 * power
                                           : 10 * power;
  for (int64_t i = static_cast<int64_t>(std::ceil(low / step - 1e-9));
       static_cast<double>(i) * step <= high + step * 1e-9; ++i) {
    axis->ticks.push_back(static_cast<double>(i) * step);
  }
}

Axis make_axis(const std::vector<double>& values, bool log, bool from_zero, double from, double to) {
  Axis axis{.from = from, .to = to, .log = log};
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!axis.holds(value)) continue;
    low = std::min(low, axis.scaled(value));
    high = std::max(high, axis.scaled(value));
  }
  if (low > high) low = high = 0.0;
  if (from_zero && !log) {
    low = std::min(low, 0.0);
    high = std::max(high, 0.0);
  }
  if (high - low < 1e-12 * std::max(1.0, std::abs(high))) high = low + (log ? 1.0 : std::max(1.0, std::abs(low)));
  axis.low = low;
  axis.high = high + (high - low) * 0.04;
  choose_ticks(&axis);
  return axis;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:g}G", value / 1e9);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:.6g}", value);
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    std::vector<double> xs, ys;
    for (const Series& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        xs.push_back(x);
        ys.push_back(y);
      }
    }
    const bool bars = chart.kind == Chart::Kind::kBar;
    if (bars) xs = {-0.5, static_cast<double>(chart.categories.size()) - 0.5};
    x_ = make_axis(xs, chart.log_x && !bars, false, kLeft, kWidth - kRight);
    if (bars) x_.high = std::max(xs[1], 0.5);
    y_ = make_axis(ys, chart.log_y, chart.kind != Chart::Kind::kScatter, kHeight - kBottom, kTop);
  }

  std::string svg() {
    out_ = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight,
                       escape_html(chart_.title));
    draw_axes();
    for (size_t i = 0; i < chart_.series.size(); ++i) {
      const auto color = std::min<size_t>(i, kNumSeriesColors - 1);
      out_ += fmt::format("<g class=\"s{}\"><title>{}</title>", color, escape_html(chart_.series[i].name));
      if (chart_.kind == Chart::Kind::kBar) {
        draw_bars(i);
      } else {
        draw_points(chart_.series[i]);
      }
      out_ += "</g>";
    }
    return out_ + "</svg>";
  }

 private:
  void text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y, anchor, more,
                        escape_html(content));
  }

  void draw_axes() {
    for (const double tick : y_.ticks) {
      const double y = y_.at(tick);
      out_ += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>", kLeft, y, kWidth - kRight);
      text(kLeft - 5, y + 4, "end", tick_text(tick));
    }
    const double bottom = kHeight - kBottom;
    if (chart_.kind == Chart::Kind::kBar) {
      const size_t every = (chart_.categories.size() + kMaxBarLabels - 1) / kMaxBarLabels;
      for (size_t i = 0; i < chart_.categories.size(); i += std::max<size_t>(every, 1)) {
        text(x_.at(static_cast<double>(i)), bottom + 15, "middle", chart_.categories[i]);
      }
    } else {
      for (const double tick : x_.ticks) text(x_.at(tick), bottom + 15, "middle", tick_text(tick));
    }
    out_ += fmt::format("<path class=\"axis\" d=\"M{} {}H{}\"/>", kLeft, bottom, kWidth - kRight);
    text((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", chart_.x_label);
    text(0, 0, "middle", chart_.y_label,
         fmt::format(" transform=\"translate(12 {:.1f}) rotate(-90)\"", (kTop + bottom) / 2).c_str());
  }

  void draw_points(const Series& series) {
    std::string path, dots;
    const bool line = chart_.kind == Chart::Kind::kLine || series.is_joined;
    const int radius = line ? 2 : series.points.size() == 1 ? 5 : 3;  // a point alone is what the chart is about
    bool pen_down = false;
    for (const auto& [x, y] : series.points) {
      if (!x_.holds(x) || !y_.holds(y)) {
        pen_down = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x_.at(x), y_.at(y));
      pen_down = true;
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}: {}, {}</title></circle>", x_.at(x),
                          y_.at(y), radius, escape_html(series.name), format_number(x), format_number(y));
    }
    if (line && !path.empty()) out_ += fmt::format("<path class=\"line\" d=\"{}\"/>", path);
    if (!line || series.points.size() <= kMaxDots) out_ += dots;
  }

  void draw_bars(size_t index) {
    const double slot = (x_.at(1.0) - x_.at(0.0)) * 0.8;
    const double width = slot / static_cast<double>(chart_.series.size());
    const double zero = y_.log ? y_.from : y_.at(0.0);
    for (const auto& [x, y] : chart_.series[index].points) {
      if (!(x > -0.5 && x < x_.high) || !y_.holds(y)) continue;
      const double top = y_.at(y);
      const double left = x_.at(x) - slot / 2 + width * static_cast<double>(index);
      out_ +=
          fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"><title>{}: {}</title></rect>",
                      left, std::min(top, zero), std::max(width - 0.5, 0.5), std::abs(zero - top),
                      escape_html(chart_.series[index].name), format_number(y));
    }
  }

  const Chart& chart_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string chart_svg(const Chart& chart) {
  return Drawing(chart).svg();
}

}  // namespace moesaic
