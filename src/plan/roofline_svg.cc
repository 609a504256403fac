#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/roofline.h"

namespace moesaic {
namespace {

constexpr double kWidth = 760, kHeight = 480, kLeft = 64, kRight = 150, kTop = 28, kBottom = 48;
constexpr double kLeastX = 0.5, kMostX = 8192, kLeastY = 0.5;
// Told apart also by those who see colours differently (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"};

struct Axes {
  double most_y;
  double x(double value) const {
    const double at = std::log(std::clamp(value, kLeastX, kMostX) / kLeastX) / std::log(kMostX / kLeastX);
    return kLeft + at * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double at = std::log(std::clamp(value, kLeastY, most_y) / kLeastY) / std::log(most_y / kLeastY);
    return kHeight - kBottom - at * (kHeight - kTop - kBottom);
  }
};

std::string text(double x, double y, const char* anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, words);
}

std::string grid(const Axes& axes) {
  std::string out;
  for (double x = 1; x <= kMostX; x *= 4) {
    out += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", axes.x(x), kTop, kHeight - kBottom);
    out += text(axes.x(x), kHeight - kBottom + 16, "middle", fmt::format("{:g}", x));
  }
  for (double y = 1; y <= axes.most_y; y *= 10) {
    out += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", kLeft, axes.y(y), kWidth - kRight);
    out += text(kLeft - 6, axes.y(y) + 4, "end", fmt::format("{:g}", y));
  }
  return out + text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", "FLOP / byte") +
         text(kLeft, kTop - 10, "start", "TFLOP/s");
}

std::string roof(const Axes& axes, const HardwareSpec& hardware, double peak, const char* name) {
  const double knee = peak * 1e3 / hardware.hbm_gb_per_s;
  return fmt::format("<path class=\"roof\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}H{:.1f}\"/>\n", axes.x(kLeastX),
                     axes.y(kLeastX * hardware.hbm_gb_per_s / 1e3), axes.x(knee), axes.y(peak), kWidth - kRight) +
         text(kWidth - kRight + 6, axes.y(peak) + 4, "start", fmt::format("{} {:g}", name, peak));
}

}  // namespace

std::string roofline_svg(const std::vector<RooflineRow>& rows, const HardwareSpec& hardware) {
  const Axes axes{std::max(hardware.fp8_tflops, hardware.bf16_tflops) * 1.6};
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"Roofline of "
      "{}\">\n"
      "<style>text{{font:12px sans-serif;fill:#888}}.grid{{stroke:#8884;fill:none}}"
      ".roof{{stroke:#888;stroke-width:2;fill:none}}</style>\n",
      kWidth, kHeight, hardware.name);
  out += grid(axes);
  if (hardware.fp8_tflops > 0) out += roof(axes, hardware, hardware.fp8_tflops, "FP8");
  out += roof(axes, hardware, hardware.bf16_tflops, "BF16");
  std::vector<std::string> kernels;
  for (const RooflineRow& row : rows) {
    if (std::find(kernels.begin(), kernels.end(), row.kernel) == kernels.end()) kernels.push_back(row.kernel);
    const auto kernel = static_cast<size_t>(std::find(kernels.begin(), kernels.end(), row.kernel) - kernels.begin());
    const std::string ep = row.ep == 0 ? "" : fmt::format(" EP{}", row.ep);
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\" fill-opacity=\"{}\"><title>{}{} batch {}: {:.0f} us, "
        "{:.0f} TFLOP/s, {}</title></circle>\n",
        axes.x(row.flops_per_byte), axes.y(row.predicted_tflops), row.is_measured ? 5 : 3.5,
        kColours[kernel % std::size(kColours)], row.is_measured ? 1 : 0.7, row.kernel, ep, row.batch, row.predicted_us,
        row.predicted_tflops, row.is_measured ? "measured" : "predicted");
  }
  for (size_t i = 0; i < kernels.size(); ++i) {
    const double y = kTop + 140 + 20 * static_cast<double>(i), x = kWidth - kRight + 14;
    out +=
        fmt::format("<circle cx=\"{:g}\" cy=\"{:g}\" r=\"5\" fill=\"{}\"/>\n", x, y, kColours[i % std::size(kColours)]);
    out += text(x + 10, y + 4, "start", kernels[i]);
  }
  return out + "</svg>\n";
}

}  // namespace moesaic
