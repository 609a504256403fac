// Expected failures travel as absl::Status / absl::StatusOr; nothing throws across files.
// A message says what was expected, what was found and which setting changes it.
//
// Messages are built with str_cat or fmt::format: Debian's absl::string_view is not std::string_view, so absl::StrCat
// is not used.
//
//   absl::StatusOr<Config> parse(...);
//   MOESAIC_ASSIGN_OR_RETURN(Config config, parse(text));
//   MOESAIC_RETURN_IF_ERROR(config.validate());
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strings.h"

#define MOESAIC_CONCAT_INNER(a, b) a##b
#define MOESAIC_CONCAT(a, b) MOESAIC_CONCAT_INNER(a, b)

#define MOESAIC_RETURN_IF_ERROR(expr)                                   \
  do {                                                                  \
    if (::absl::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)

#define MOESAIC_ASSIGN_OR_RETURN(lhs, expr) MOESAIC_ASSIGN_OR_RETURN_IMPL(MOESAIC_CONCAT(result_, __LINE__), lhs, expr)
#define MOESAIC_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) return std::move(result).status();   \
  lhs = *std::move(result)

namespace moesaic {

// The same status with "context: " before its message. OK stays OK.
absl::Status annotate(const absl::Status& status, std::string_view context);

}  // namespace moesaic
