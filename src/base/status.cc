#include "base/status.h"

namespace moesaic {

absl::Status annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), str_cat(context, ": ", status.message()));
}

}  // namespace moesaic
