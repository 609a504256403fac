#include "cli/report_file.h"

#include <fstream>

namespace moesaic {

absl::Status write_text(const std::string& text, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(str_cat("cannot write ", path));
}

absl::Status write_report(const Report& report, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  return write_text(path.ends_with(".json") ? report_json(report) : report_html(report), path);
}

}  // namespace moesaic
